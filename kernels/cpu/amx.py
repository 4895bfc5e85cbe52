"""Tile registers of Intel's AMX: small matrix products as one instruction.

Owns the instructions and two configurations of the eight registers. In WHOLE all of them have 16 rows of 64
bytes. In CONFIGURATION each gets rows of so many bytes:

    SUMS, MORE_SUMS, WIDE, OTHER   16 rows of 64 bytes
    LEFT, OTHER_LEFT               16 rows of 32 bytes
    RIGHT, OTHER_RIGHT              8 rows of 64 bytes

A thread calls `configure` before the others and `release` at last. See Intel's "Architecture Instruction Set
Extensions Programming Reference", chapter 3.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering

__all__ = [
    "CONFIGURATION",
    "LEFT",
    "MORE_SUMS",
    "OTHER",
    "OTHER_LEFT",
    "OTHER_RIGHT",
    "RIGHT",
    "SUMS",
    "WHOLE",
    "WIDE",
    "add_bfloat_products",
    "add_byte_products",
    "add_unsigned_products",
    "clear",
    "configure",
    "is_usable",
    "load",
    "release",
    "store",
]

SUMS, MORE_SUMS, WIDE, OTHER, LEFT, OTHER_LEFT, RIGHT, OTHER_RIGHT = range(8)

_SHAPES = [(16, 64)] * 4 + [(16, 32)] * 2 + [(8, 64)] * 2  # rows, bytes
_FEATURES = llvmlite.binding.get_host_cpu_features()
_IS_COMPILED = all(_FEATURES.get(name, False) for name in ("amx-tile", "amx-int8", "amx-bf16"))

_SYS_ARCH_PRCTL = 158  # on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18

BYTE = ir.IntType(8)
POINTER = BYTE.as_pointer()
INDEX = ir.IntType(64)


def _configuration(shapes: Sequence[tuple[int, int]]) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """The operand of `ldtilecfg`: palette 1, then bytes a row, then rows."""
    operand = np.zeros(64, np.uint8)
    operand[0] = 1
    operand[16:32].view(np.uint16)[:] = [width for _, width in shapes]
    operand[48:56] = [rows for rows, _ in shapes]
    return operand


CONFIGURATION = _configuration(_SHAPES)
WHOLE = _configuration([(16, 64)] * 8)


def is_usable() -> bool:
    """Whether this process may use the registers, which it asks the kernel for."""
    if not _IS_COMPILED or not sys.platform.startswith("linux"):
        return False
    answer = ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return bool(answer == 0)


def _emit(builder: Any, name: str, *arguments: Any) -> None:
    # Elsewhere LLVM has no such instruction, and nobody gets here.
    if _IS_COMPILED:
        lowering.call(builder, f"llvm.x86.{name}", list(arguments), ir.VoidType())


def _register(kind: Any) -> Any:
    return ir.Constant(BYTE, kind.literal_value)


def _place(context: Any, builder: Any, array: Any, array_type: Any, offset: Any) -> Any:
    return builder.bitcast(lowering.address(context, builder, array, array_type, offset), POINTER)


@intrinsic
def configure(typing, configuration):
    """Give this thread's registers their shapes, and zeros. `configuration` is one of those here."""

    def codegen(context, builder, signature, arguments):
        _emit(
            builder, "ldtilecfg", _place(context, builder, arguments[0], configuration, ir.Constant(INDEX, 0))
        )
        return context.get_dummy_value()

    return types.none(configuration), codegen


@intrinsic
def release(typing):
    """Give this thread's registers back, so that nobody saves them when it is switched."""

    def codegen(context, builder, signature, arguments):
        _emit(builder, "tilerelease")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic(prefer_literal=True)
def clear(typing, register):
    """Zeros."""
    if not isinstance(register, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, arguments):
        _emit(builder, "tilezero", _register(register))
        return context.get_dummy_value()

    return types.none(register), codegen


def _move(name: str) -> Any:
    def declare(typing, register, array, offset, stride):
        if not isinstance(register, types.IntegerLiteral):
            return None

        def codegen(context, builder, signature, arguments):
            place = _place(context, builder, arguments[1], array, arguments[2])
            _emit(builder, name, _register(register), place, arguments[3])
            return context.get_dummy_value()

        return types.none(register, array, types.intp, types.intp), codegen

    return intrinsic(prefer_literal=True)(declare)


# (register, array, offset in elements of its first row, bytes from one row to the next)
load = _move("tileloadd64")
store = _move("tilestored64")


def _products(name: str) -> Any:
    def declare(typing, sums, left, right):
        if not all(isinstance(kind, types.IntegerLiteral) for kind in (sums, left, right)):
            return None

        def codegen(context, builder, signature, arguments):
            _emit(builder, name, *(_register(kind) for kind in (sums, left, right)))
            return context.get_dummy_value()

        return types.none(sums, left, right), codegen

    return intrinsic(prefer_literal=True)(declare)


# (sums, left, right): sums[i, j] += sum over k of left[i, k] * right[k, j]. A row of the right side holds
# 4 bytes, or 2 bfloat16 numbers, of each of 16 columns: those of consecutive k.
add_byte_products = _products("tdpbsud")  # signed times unsigned bytes, into int32
add_unsigned_products = _products("tdpbusd")  # unsigned times signed bytes, into int32
add_bfloat_products = _products("tdpbf16ps")  # bfloat16, into float32
