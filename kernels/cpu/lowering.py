"""The code that vector operations are made of, as LLVM's instructions.

Owns the three Numba types, a vector of LANES float32 numbers, LANES pairs of bfloat16 numbers and a tile of a
few vectors, and the pieces from which `vectors`, `pairs` and `tiles` build their operations. What they become
on a given processor is LLVM's business, so they are right on every one; a few become single instructions
where FEATURES has these. Arrays of uint16 stand for bfloat16: loads widen them, stores round to nearest even.
"""

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

__all__ = [
    "BFLOAT_PAIRS",
    "FEATURES",
    "FLOAT",
    "FLOATS",
    "INT32",
    "INTS",
    "LANES",
    "PAIR",
    "SHORT",
    "SHORTS",
    "VECTOR",
    "Tile",
    "add_pair_products",
    "address",
    "call",
    "constant",
    "dot_pairs",
    "fma",
    "int_constant",
    "load",
    "round_lanes",
    "rounded",
    "splat",
    "split_words",
    "store",
    "whole_numbers",
    "widen",
]

LANES = 16
FEATURES = llvmlite.binding.get_host_cpu_features()  # names of LLVM's, such as "avx512bf16"

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
SHORT = ir.IntType(16)
FLOATS = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT32, LANES)
SHORTS = ir.VectorType(SHORT, LANES)


class _BFloat(ir.Type):  # type: ignore[misc] # llvmlite has no types
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BFLOATS = ir.VectorType(_BFloat(), LANES)
BFLOAT_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)


class Vector(types.Type):  # type: ignore[misc] # numba has no types
    """LANES float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


class Pair(types.Type):  # type: ignore[misc] # numba has no types
    """LANES pairs of bfloat16 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Pair")


class Tile(types.Type):  # type: ignore[misc] # numba has no types
    """`rows` vectors, one below the other."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(name=f"Tile({rows})")


VECTOR = Vector()
PAIR = Pair()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc] # numba has no types
    """A vector lives in a register."""

    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, FLOATS)


@register_model(Pair)
class PairModel(models.PrimitiveModel):  # type: ignore[misc] # numba has no types
    """Pairs live in a register, each in a lane of 32 bits: its first number in the lower half."""

    def __init__(self, manager: Any, kind: Pair) -> None:
        super().__init__(manager, kind, INTS)


@register_model(Tile)
class TileModel(models.PrimitiveModel):  # type: ignore[misc] # numba has no types
    """A tile is an array of vectors, which LLVM takes apart into registers."""

    def __init__(self, manager: Any, kind: Tile) -> None:
        super().__init__(manager, kind, ir.ArrayType(FLOATS, kind.rows))


def splat(builder: Any, value: Any, kind: Any) -> Any:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)


def whole_numbers(builder: Any, vector: Any) -> Any:
    """Numbers of less than 2 ** 22, rounded to INTS, ties to even. NaN becomes anything."""
    # Near this a float32's last bit counts one: adding it rounds, and the lower bits are the result.
    near = np.float32(1.5 * 2**23)
    raised = builder.bitcast(builder.fadd(vector, constant(float(near))), INTS)
    return builder.sub(raised, int_constant(int(near.view(np.int32))))


def split_words(builder: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """The high and the low bytes of two INTS from 0 to 65535, one behind the other."""
    kind = ir.VectorType(SHORT, 2 * LANES)
    if FEATURES.get("avx512bw", False) and FEATURES.get("avx512vbmi", False):
        # Packed in one instruction, four of the one and four of the other in turn, and ordered in another.
        words = call(builder, "llvm.x86.avx512.packusdw.512", [first, second], kind)
        order = [lane // 4 * 8 + lane % 4 for lane in range(LANES)]
        order += [place + 4 for place in order]
    else:
        order = list(range(2 * LANES))
        lanes = ir.Constant(ir.VectorType(INT32, 2 * LANES), order)
        words = builder.shuffle_vector(builder.trunc(first, SHORTS), builder.trunc(second, SHORTS), lanes)
    data = builder.bitcast(words, ir.VectorType(ir.IntType(8), 4 * LANES))
    high, low = (
        builder.shuffle_vector(
            data,
            ir.Constant(data.type, ir.Undefined),
            ir.Constant(ir.VectorType(INT32, 2 * LANES), [2 * place + byte for place in order]),
        )
        for byte in (1, 0)
    )
    return high, low


def constant(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def int_constant(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def call(builder: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    result = result or arguments[0].type
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def fma(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    return call(builder, f"llvm.fma.v{LANES}f32", [left, right, addend])


def dot_pairs(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    """addend + left[0] * right[0] + left[1] * right[1] in every lane; both are pairs."""
    if FEATURES.get("avx512bf16", False):
        operands = [builder.bitcast(each, BFLOAT_PAIRS) for each in (left, right)]
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", [addend, *operands], FLOATS)
    return add_pair_products(builder, left, right, addend)


def add_pair_products(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    """As `dot_pairs`: on any processor, and with one rounding a product and sum."""
    for widen in (_lower_halves, _upper_halves):
        addend = fma(builder, widen(builder, left), widen(builder, right), addend)
    return addend


def _lower_halves(builder: Any, pairs: Any) -> Any:
    return builder.bitcast(builder.shl(pairs, int_constant(16)), FLOATS)


def _upper_halves(builder: Any, pairs: Any) -> Any:
    return builder.bitcast(builder.and_(pairs, int_constant(0xFFFF0000)), FLOATS)


def address(context: Any, builder: Any, array: Any, array_type: Any, offset: Any) -> Any:
    if isinstance(array_type, types.CPointer):
        return builder.gep(array, [offset])
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def load(builder: Any, array_type: Any, place: Any) -> Any:
    """A vector at an address of the array's elements, which need not be aligned."""
    if array_type.dtype == types.float32:
        return builder.load(builder.bitcast(place, FLOATS.as_pointer()), align=4)
    return widen(builder, builder.load(builder.bitcast(place, SHORTS.as_pointer()), align=2))


def widen(builder: Any, short: Any) -> Any:
    """A vector from the bits of LANES bfloat16 numbers."""
    return builder.bitcast(builder.shl(builder.zext(short, INTS), int_constant(16)), FLOATS)


def round_lanes(builder: Any, value: Any) -> Any:
    """A vector's bits in bfloat16, rounded to nearest even; processors with an instruction for it take
    subnormal numbers as zeros.
    """
    if FEATURES.get("avx512bf16", False):
        short = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", [value], BFLOATS)
        return builder.bitcast(short, SHORTS)
    return rounded(builder, value, INTS, int_constant, SHORTS)


def rounded(builder: Any, value: Any, bits: Any, constant: Any, result: Any) -> Any:
    """The upper halves of float32 numbers, rounded to nearest even."""
    whole = builder.bitcast(value, bits)
    odd = builder.and_(builder.lshr(whole, constant(16)), constant(1))
    whole = builder.add(whole, builder.add(odd, constant(0x7FFF)))
    return builder.trunc(builder.lshr(whole, constant(16)), result)


def store(builder: Any, array_type: Any, place: Any, value: Any) -> None:
    if array_type.dtype == types.float32:
        builder.store(value, builder.bitcast(place, FLOATS.as_pointer()), align=4)
        return
    short = round_lanes(builder, value)
    builder.store(short, builder.bitcast(place, SHORTS.as_pointer()), align=2)
