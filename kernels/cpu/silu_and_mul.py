"""The gated feed-forward's activation, compiled for the CPU."""

import math

import numba
import numpy as np
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.exponentials import exp
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    divide,
    load,
    load_scalar,
    minimum,
    multiply,
    store,
    store_scalar,
    subtract,
)

__all__ = ["silu_and_mul"]

EXP_LIMIT = 88.0  # exp's own limit; silu is zero there already


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `silu_and_mul_reference`."""
    out = torch.empty(len(gate_up), gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _silu_and_mul(as_array(gate_up), as_array(out))
    return out


@numba.njit
def _activate_row(gate_up, row, size, out):
    gate_start, up_start, out_start = row * 2 * size, row * 2 * size + size, row * size
    vector_end = size // LANES * LANES
    one, limit = broadcast(np.float32(1)), broadcast(np.float32(EXP_LIMIT))
    for dim in range(0, vector_end, LANES):
        gate = load(gate_up, gate_start + dim)
        decay = exp(minimum(subtract(broadcast(np.float32(0)), gate), limit))
        active = divide(gate, add(one, decay))
        store(out, out_start + dim, multiply(active, load(gate_up, up_start + dim)))
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
