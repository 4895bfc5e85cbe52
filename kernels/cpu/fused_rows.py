"""Norms and activations of single rows in float32, for compiled functions."""

import numpy as np

from kernels.cpu.exponentials import exp
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    divide,
    load,
    minimum,
    multiply,
    multiply_add,
    store,
    subtract,
    total,
)

__all__ = ["EXP_LIMIT", "gated", "norm_row"]

EXP_LIMIT = 88.0  # exp's own limit; silu is zero there already


@leaf
def norm_row(x, start, size, weight, weight_start, eps, out, out_start):
    """`size` numbers of `x`, a multiple of LANES, normed into `out`, which may be `x` itself."""
    squares = broadcast(np.float32(0))
    for dim in range(0, size, LANES):
        value = load(x, start + dim)
        squares = multiply_add(value, value, squares)
    scale = broadcast(np.float32(1) / np.sqrt(total(squares) / np.float32(size) + eps))
    for dim in range(0, size, LANES):
        scaled = multiply(load(x, start + dim), scale)
        store(out, out_start + dim, multiply(scaled, load(weight, weight_start + dim)))


@leaf
def gated(gate, up):
    """silu(gate) * up, vectors."""
    decay = exp(minimum(subtract(broadcast(np.float32(0)), gate), broadcast(np.float32(EXP_LIMIT))))
    return multiply(divide(gate, add(broadcast(np.float32(1)), decay)), up)
