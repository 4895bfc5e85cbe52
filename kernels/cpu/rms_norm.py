"""Root-mean-square normalization, compiled for the CPU."""

import numba
import numpy as np
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    load,
    load_scalar,
    multiply,
    multiply_add,
    store,
    store_scalar,
    total,
)

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `rms_norm_reference`."""
    out = torch.empty(x.shape, dtype=weight.dtype)
    size = len(weight)
    _rms_norm(as_array(x.view(-1, size)), as_array(weight), np.float32(eps), as_array(out.view(-1, size)))
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `add_rms_norm_reference`: adds x to the residual in place."""
    out = torch.empty_like(x)
    _add_rms_norm(as_array(x), as_array(residual), as_array(weight), np.float32(eps), as_array(out))
    return out


@numba.njit
def _normalize_row(x, start, weight, eps, out):
    """Row of `x` and of `out` from element `start` on."""
    size = len(weight)
    vector_end = size // LANES * LANES
    squares = broadcast(np.float32(0))
    for dim in range(0, vector_end, LANES):
        value = load(x, start + dim)
        squares = multiply_add(value, value, squares)
    square_sum = total(squares)
    for dim in range(vector_end, size):
        square_sum += load_scalar(x, start + dim) ** 2
    scale = np.float32(1) / np.sqrt(square_sum / np.float32(size) + eps)
    for dim in range(0, vector_end, LANES):
        scaled = multiply(load(x, start + dim), broadcast(scale))
        store(out, start + dim, multiply(scaled, load(weight, dim)))
    for dim in range(vector_end, size):
        store_scalar(out, start + dim, load_scalar(x, start + dim) * scale * load_scalar(weight, dim))


@numba.njit
def _add_row(x, start, residual, size):
    vector_end = size // LANES * LANES
    for dim in range(0, vector_end, LANES):
        store(residual, start + dim, add(load(residual, start + dim), load(x, start + dim)))
    for dim in range(vector_end, size):
        store_scalar(residual, start + dim, load_scalar(residual, start + dim) + load_scalar(x, start + dim))


@numba.njit(parallel=True, cache=True)
def _rms_norm(x, weight, eps, out):
    for row in numba.prange(len(x)):
        _normalize_row(x, row * len(weight), weight, eps, out)


@numba.njit(parallel=True, cache=True)
def _add_rms_norm(x, residual, weight, eps, out):
    size = len(weight)
    for row in numba.prange(len(x)):
        _add_row(x, row * size, residual, size)
        _normalize_row(residual, row * size, weight, eps, out)
