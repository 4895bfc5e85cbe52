"""The ways to compute attention's products on a CPU, one for a machine and a pool.

    COLUMNS          any processor; the one for float32
    DOTS             bfloat16: dot products of pairs in one instruction
    REGISTERS        bfloat16: AMX
    BYTES            8 bits: dot products of bytes
    BYTE_REGISTERS   8 bits: the same, and AMX where rows are many

A program is compiled for one of them. Owns the choice.
"""

import torch

from kernels.cpu import amx
from kernels.cpu.lowering import FEATURES, LANES

__all__ = ["BYTES", "BYTE_REGISTERS", "COLUMNS", "DOTS", "REGISTERS", "WAYS", "way_for"]

WAYS = COLUMNS, DOTS, REGISTERS, BYTES, BYTE_REGISTERS = 0, 1, 2, 3, 4

BYTE_DEPTH = 64  # dimensions that a tile register holds of a row of bytes

_HAS_REGISTERS = amx.is_usable()
_HAS_DOTS = bool(FEATURES.get("avx512bf16", False))


def way_for(dtype: torch.dtype, head_dim: int) -> int:
    """The fastest way that this machine has for such heads in a pool of `dtype`."""
    if dtype == torch.int8:
        return BYTE_REGISTERS if _HAS_REGISTERS and head_dim % BYTE_DEPTH == 0 else BYTES
    if dtype == torch.float32:
        return COLUMNS
    if _HAS_REGISTERS and head_dim % LANES == 0:
        return REGISTERS
    return DOTS if _HAS_DOTS else COLUMNS
