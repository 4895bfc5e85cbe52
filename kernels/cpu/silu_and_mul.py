"""The gated feed-forward's activation, compiled for the CPU."""

import math

import numba
import numpy as np
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.fused_rows import EXP_LIMIT, gated
from kernels.cpu.vectors import LANES, load, load_scalar, store, store_scalar

__all__ = ["silu_and_mul"]


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `silu_and_mul_reference`."""
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _silu_and_mul(as_array(gate_up), as_array(out))
    return out


@numba.njit
def _activate_row(gate_up, row, size, out):
    gate_start, up_start, out_start = row * 2 * size, row * 2 * size + size, row * size
    vector_end = size // LANES * LANES
    for dim in range(0, vector_end, LANES):
        active = gated(load(gate_up, gate_start + dim), load(gate_up, up_start + dim))
        store(out, out_start + dim, active)
    for dim in range(vector_end, size):
        gate_number = load_scalar(gate_up, gate_start + dim)
        decay_number = np.float32(math.exp(min(-gate_number, np.float32(EXP_LIMIT))))
        active_number = gate_number / (np.float32(1) + decay_number)
        store_scalar(out, out_start + dim, active_number * load_scalar(gate_up, up_start + dim))


@numba.njit(parallel=True, cache=True)
def _silu_and_mul(gate_up, out):
    size = out.shape[1]
    for row in numba.prange(len(out)):
        _activate_row(gate_up, row, size, out)
