"""The code that vector operations are made of, as LLVM's instructions.

Owns the two Numba types, a vector of LANES float32 numbers and a tile of a few vectors, and the pieces from
which `vectors` and `tiles` build their operations. What they become on a given processor is LLVM's
business, so they are right on every one. Arrays of uint16 stand for bfloat16: loads widen them, stores round
to nearest even.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

__all__ = [
    "FLOAT",
    "FLOATS",
    "INT32",
    "INTS",
    "LANES",
    "SHORT",
    "VECTOR",
    "Tile",
    "address",
    "call",
    "constant",
    "fma",
    "int_constant",
    "load",
    "rounded",
    "splat",
    "store",
]

LANES = 16

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
SHORT = ir.IntType(16)
FLOATS = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT32, LANES)
SHORTS = ir.VectorType(SHORT, LANES)


class Vector(types.Type):  # type: ignore[misc] # numba has no types
    """LANES float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


class Tile(types.Type):  # type: ignore[misc] # numba has no types
    """`rows` vectors, one below the other."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(name=f"Tile({rows})")


VECTOR = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):  # type: ignore[misc] # numba has no types
    """A vector lives in a register."""

    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, FLOATS)


@register_model(Tile)
class TileModel(models.PrimitiveModel):  # type: ignore[misc] # numba has no types
    """A tile is an array of vectors, which LLVM takes apart into registers."""

    def __init__(self, manager: Any, kind: Tile) -> None:
        super().__init__(manager, kind, ir.ArrayType(FLOATS, kind.rows))


def splat(builder: Any, value: Any, kind: Any) -> Any:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)


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


def address(context: Any, builder: Any, array: Any, array_type: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def load(builder: Any, array_type: Any, place: Any) -> Any:
    """A vector at an address of the array's elements, which need not be aligned."""
    if array_type.dtype == types.float32:
        return builder.load(builder.bitcast(place, FLOATS.as_pointer()), align=4)
    short = builder.load(builder.bitcast(place, SHORTS.as_pointer()), align=2)
    return builder.bitcast(builder.shl(builder.zext(short, INTS), int_constant(16)), FLOATS)


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
    short = rounded(builder, value, INTS, int_constant, SHORTS)
    builder.store(short, builder.bitcast(place, SHORTS.as_pointer()), align=2)
