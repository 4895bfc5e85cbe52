"""Sixteen float32 lanes as a value that compiled functions compute with.

Owns two Numba types, a vector and a tile of a few vectors, and the operations on them. What they become on
a given processor is LLVM's business, so they are right on every one. Arrays of uint16 stand for bfloat16:
loads widen them, stores round to nearest even. Offsets count elements from an array's first, whatever its
dimensions; nothing checks them.
"""

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = [
    "LANES",
    "accumulate",
    "add",
    "broadcast",
    "divide",
    "exp",
    "largest",
    "load",
    "load_scalar",
    "load_tile",
    "mask_from",
    "maximum",
    "minimum",
    "multiply",
    "multiply_add",
    "store",
    "store_scalar",
    "store_tile",
    "subtract",
    "total",
    "zero_tile",
]

LANES = 16

FLOAT = ir.FloatType()
INT32 = ir.IntType(32)
BFLOAT_BITS = ir.IntType(16)
FLOATS = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(INT32, LANES)
SHORTS = ir.VectorType(BFLOAT_BITS, LANES)


class Vector(types.Type):
    """LANES float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


class Tile(types.Type):
    """`rows` vectors, one below the other."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        super().__init__(name=f"Tile({rows})")


VECTOR = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector lives in a register."""

    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, FLOATS)


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    """A tile is an array of vectors, which LLVM takes apart into registers."""

    def __init__(self, manager: Any, kind: Tile) -> None:
        super().__init__(manager, kind, ir.ArrayType(FLOATS, kind.rows))


# --- pieces of generated code ---------------------------------------------------------------------------------


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)


def _constant(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def _int_constant(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def _call(builder: Any, name: str, arguments: list[Any], result: Any = None) -> Any:
    result = result or arguments[0].type
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _fma(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    return _call(builder, f"llvm.fma.v{LANES}f32", [left, right, addend])


def _address(context: Any, builder: Any, array: Any, array_type: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _load(context: Any, builder: Any, array_type: Any, address: Any) -> Any:
    """A vector at an address of the array's elements, which need not be aligned."""
    if array_type.dtype == types.float32:
        return builder.load(builder.bitcast(address, FLOATS.as_pointer()), align=4)
    short = builder.load(builder.bitcast(address, SHORTS.as_pointer()), align=2)
    return builder.bitcast(builder.shl(builder.zext(short, INTS), _int_constant(16)), FLOATS)


def _rounded(builder: Any, value: Any, bits: Any, constant: Any, result: Any) -> Any:
    """The upper halves of float32 numbers, rounded to nearest even."""
    whole = builder.bitcast(value, bits)
    odd = builder.and_(builder.lshr(whole, constant(16)), constant(1))
    whole = builder.add(whole, builder.add(odd, constant(0x7FFF)))
    return builder.trunc(builder.lshr(whole, constant(16)), result)


def _store(builder: Any, array_type: Any, address: Any, value: Any) -> None:
    if array_type.dtype == types.float32:
        builder.store(value, builder.bitcast(address, FLOATS.as_pointer()), align=4)
        return
    short = _rounded(builder, value, INTS, _int_constant, SHORTS)
    builder.store(short, builder.bitcast(address, SHORTS.as_pointer()), align=2)


# --- one number -----------------------------------------------------------------------------------------------


@intrinsic
def load_scalar(typing, array, offset):  # type: ignore[no-untyped-def]
    """One element as float32."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        element = builder.load(_address(context, builder, arguments[0], array, arguments[1]))
        if array.dtype == types.float32:
            return element
        return builder.bitcast(builder.shl(builder.zext(element, INT32), ir.Constant(INT32, 16)), FLOAT)

    return types.float32(array, types.intp), codegen


@intrinsic
def store_scalar(typing, array, offset, value):  # type: ignore[no-untyped-def]
    """One element from float32."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = _address(context, builder, arguments[0], array, arguments[1])
        element = arguments[2]
        if array.dtype != types.float32:
            element = _rounded(builder, element, INT32, lambda bits: ir.Constant(INT32, bits), BFLOAT_BITS)
        builder.store(element, address)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.float32), codegen


# --- vectors --------------------------------------------------------------------------------------------------


@intrinsic
def load(typing, array, offset):  # type: ignore[no-untyped-def]
    """LANES elements from an offset on."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _load(context, builder, array, _address(context, builder, arguments[0], array, arguments[1]))

    return VECTOR(array, types.intp), codegen


@intrinsic
def store(typing, array, offset, value):  # type: ignore[no-untyped-def]
    """LANES elements from an offset on."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        address = _address(context, builder, arguments[0], array, arguments[1])
        _store(builder, array, address, arguments[2])
        return context.get_dummy_value()

    return types.none(array, types.intp, VECTOR), codegen


@intrinsic
def broadcast(typing, value):  # type: ignore[no-untyped-def]
    """The same number in every lane."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _splat(builder, arguments[0], FLOATS)

    return VECTOR(types.float32), codegen


def _binary(emit: Any) -> Any:
    def declare(typing, left, right):  # type: ignore[no-untyped-def]
        return VECTOR(VECTOR, VECTOR), lambda context, builder, signature, arguments: emit(
            builder, *arguments
        )

    return intrinsic(declare)


add = _binary(lambda builder, left, right: builder.fadd(left, right))
multiply = _binary(lambda builder, left, right: builder.fmul(left, right))
subtract = _binary(lambda builder, left, right: builder.fsub(left, right))
divide = _binary(lambda builder, left, right: builder.fdiv(left, right))
minimum = _binary(lambda builder, left, right: _call(builder, f"llvm.minnum.v{LANES}f32", [left, right]))
maximum = _binary(lambda builder, left, right: _call(builder, f"llvm.maxnum.v{LANES}f32", [left, right]))


@intrinsic
def multiply_add(typing, left, right, addend):  # type: ignore[no-untyped-def]
    """left * right + addend, rounded once."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _fma(builder, *arguments)

    return VECTOR(VECTOR, VECTOR, VECTOR), codegen


@intrinsic
def total(typing, vector):  # type: ignore[no-untyped-def]
    """The sum of the lanes, always added in the same order."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value = arguments[0]
        width = LANES
        while width > 1:
            width //= 2
            upper = ir.Constant(ir.VectorType(INT32, width), list(range(width, 2 * width)))
            lower = ir.Constant(ir.VectorType(INT32, width), list(range(width)))
            value = builder.fadd(
                builder.shuffle_vector(value, value, lower), builder.shuffle_vector(value, value, upper)
            )
        return builder.extract_element(value, ir.Constant(INT32, 0))

    return types.float32(VECTOR), codegen


@intrinsic
def largest(typing, vector):  # type: ignore[no-untyped-def]
    """The greatest lane."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", [arguments[0]], FLOAT)

    return types.float32(VECTOR), codegen


@intrinsic
def mask_from(typing, vector, count):  # type: ignore[no-untyped-def]
    """Minus infinity in lane `count` and after."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        lanes = ir.Constant(INTS, list(range(LANES)))
        limit = _splat(builder, builder.trunc(arguments[1], INT32), INTS)
        kept = builder.icmp_signed("<", lanes, limit)
        return builder.select(kept, arguments[0], _constant(-math.inf))

    return VECTOR(VECTOR, types.intp), codegen


# exp(r) for |r| <= log(2) / 2 as a polynomial, highest power first: the Taylor series up to r^7 / 7!, which
# leaves a relative error under 1e-8.
EXP_TERMS = [1 / math.factorial(power) for power in range(7, -1, -1)]
LOG2_HIGH = 0.693359375  # a float32 with so few bits that multiples of it are exact
LOG2_LOW = math.log(2) - LOG2_HIGH
EXP_FLOOR = -87.0  # below it the result is no normal number: it becomes zero


@intrinsic
def exp(typing, vector):  # type: ignore[no-untyped-def]
    """The exponential of numbers up to 88; exactly zero below EXP_FLOOR; NaN stays NaN."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        x = _call(builder, f"llvm.maxnum.v{LANES}f32", [arguments[0], _constant(EXP_FLOOR)])
        power = _call(
            builder, f"llvm.floor.v{LANES}f32", [_fma(builder, x, _constant(1 / math.log(2)), _constant(0.5))]
        )
        rest = _fma(builder, power, _constant(-LOG2_HIGH), x)
        rest = _fma(builder, power, _constant(-LOG2_LOW), rest)
        value = _constant(EXP_TERMS[0])
        for term in EXP_TERMS[1:]:
            value = _fma(builder, value, rest, _constant(term))
        exponent = builder.shl(builder.fptosi(power, INTS), _int_constant(23))
        value = builder.bitcast(builder.add(builder.bitcast(value, INTS), exponent), FLOATS)
        value = builder.select(
            builder.fcmp_ordered("<", arguments[0], _constant(EXP_FLOOR)), _constant(0.0), value
        )
        return builder.select(builder.fcmp_ordered("ord", arguments[0], arguments[0]), value, arguments[0])

    return VECTOR(VECTOR), codegen


# --- tiles ----------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def zero_tile(typing, rows):  # type: ignore[no-untyped-def]
    """A tile of zeros; `rows` is a constant."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    kind = Tile(rows.literal_value)

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return ir.Constant(ir.ArrayType(FLOATS, kind.rows), [_constant(0.0)] * kind.rows)

    return kind(rows), codegen


@intrinsic(prefer_literal=True)
def load_tile(typing, rows, array, offset, stride):  # type: ignore[no-untyped-def]
    """`rows` vectors, `stride` elements apart."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    kind = Tile(rows.literal_value)

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, data, place, step = arguments
        tile = ir.Constant(ir.ArrayType(FLOATS, kind.rows), ir.Undefined)
        for row in range(kind.rows):
            vector = _load(context, builder, array, _address(context, builder, data, array, place))
            tile = builder.insert_value(tile, vector, row)
            place = builder.add(place, step)
        return tile

    return kind(rows, array, types.intp, types.intp), codegen


@intrinsic
def store_tile(typing, tile, array, offset, stride):  # type: ignore[no-untyped-def]
    """A tile's vectors, `stride` elements apart."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value, data, place, step = arguments
        for row in range(tile.rows):
            address = _address(context, builder, data, array, place)
            _store(builder, array, address, builder.extract_value(value, row))
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.none(tile, array, types.intp, types.intp), codegen


@intrinsic
def accumulate(typing, tile, factors, offset, stride, vector):  # type: ignore[no-untyped-def]
    """Row r of the tile plus factors[offset + r * stride] times the vector: one column of an outer product."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        value, data, place, step, other = arguments
        for row in range(tile.rows):
            factor = builder.load(_address(context, builder, data, factors, place))
            product = _fma(builder, _splat(builder, factor, FLOATS), other, builder.extract_value(value, row))
            value = builder.insert_value(value, product, row)
            place = builder.add(place, step)
        return value

    return tile(tile, factors, types.intp, types.intp, VECTOR), codegen
