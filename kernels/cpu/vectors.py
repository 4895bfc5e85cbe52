"""Vectors of LANES float32 numbers, as values that compiled functions compute with.

Owns the operations on single numbers and vectors. Offsets count elements from an array's first, whatever its
dimensions; nothing checks them.
"""

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES

__all__ = [
    "LANES",
    "add",
    "broadcast",
    "divide",
    "first_lane",
    "larger",
    "larger_magnitude",
    "largest",
    "largest_magnitude",
    "load",
    "load_scalar",
    "mask_from",
    "maximum",
    "minimum",
    "multiply",
    "multiply_add",
    "store",
    "store_scalar",
    "subtract",
    "total",
    "zero_from",
]


@intrinsic
def load_scalar(typing, array, offset):
    """One element as float32."""

    def codegen(context, builder, signature, arguments):
        element = builder.load(lowering.address(context, builder, arguments[0], array, arguments[1]))
        if array.dtype == types.float32:
            return element
        return builder.bitcast(
            builder.shl(builder.zext(element, lowering.INT32), ir.Constant(lowering.INT32, 16)),
            lowering.FLOAT,
        )

    return types.float32(array, types.intp), codegen


@intrinsic
def store_scalar(typing, array, offset, value):
    """One element from float32."""

    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], array, arguments[1])
        element = arguments[2]
        if array.dtype != types.float32:
            element = lowering.rounded(
                builder,
                element,
                lowering.INT32,
                lambda bits: ir.Constant(lowering.INT32, bits),
                lowering.SHORT,
            )
        builder.store(element, address)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.float32), codegen


@intrinsic
def load(typing, array, offset):
    """LANES elements from an offset on."""

    def codegen(context, builder, signature, arguments):
        return lowering.load(
            builder, array, lowering.address(context, builder, arguments[0], array, arguments[1])
        )

    return lowering.VECTOR(array, types.intp), codegen


@intrinsic
def store(typing, array, offset, value):
    """LANES elements from an offset on."""

    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], array, arguments[1])
        lowering.store(builder, array, address, arguments[2])
        return context.get_dummy_value()

    return types.none(array, types.intp, lowering.VECTOR), codegen


@intrinsic
def broadcast(typing, value):
    """The same number in every lane."""

    def codegen(context, builder, signature, arguments):
        return lowering.splat(builder, arguments[0], lowering.FLOATS)

    return lowering.VECTOR(types.float32), codegen


def _binary(emit: Any) -> Any:
    def declare(typing, left, right):
        return lowering.VECTOR(
            lowering.VECTOR, lowering.VECTOR
        ), lambda context, builder, signature, arguments: emit(builder, *arguments)

    return intrinsic(declare)


add = _binary(lambda builder, left, right: builder.fadd(left, right))
multiply = _binary(lambda builder, left, right: builder.fmul(left, right))
subtract = _binary(lambda builder, left, right: builder.fsub(left, right))
divide = _binary(lambda builder, left, right: builder.fdiv(left, right))
minimum = _binary(
    lambda builder, left, right: lowering.call(builder, f"llvm.minnum.v{LANES}f32", [left, right])
)
maximum = _binary(
    lambda builder, left, right: lowering.call(builder, f"llvm.maxnum.v{LANES}f32", [left, right])
)


@intrinsic
def multiply_add(typing, left, right, addend):
    """left * right + addend, rounded once."""

    def codegen(context, builder, signature, arguments):
        return lowering.fma(builder, *arguments)

    return lowering.VECTOR(lowering.VECTOR, lowering.VECTOR, lowering.VECTOR), codegen


def _fold(builder: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """One number from all lanes: halves are combined with halves, always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        upper = ir.Constant(ir.VectorType(lowering.INT32, width), list(range(width, 2 * width)))
        lower = ir.Constant(ir.VectorType(lowering.INT32, width), list(range(width)))
        value = combine(
            builder.shuffle_vector(value, value, lower), builder.shuffle_vector(value, value, upper)
        )
    return builder.extract_element(value, ir.Constant(lowering.INT32, 0))


@intrinsic
def total(typing, vector):
    """The sum of the lanes, always added in the same order."""

    def codegen(context, builder, signature, arguments):
        return _fold(builder, arguments[0], builder.fadd)

    return types.float32(lowering.VECTOR), codegen


@intrinsic
def first_lane(typing, vector):
    """The number in lane 0."""

    def codegen(context, builder, signature, arguments):
        return builder.extract_element(arguments[0], ir.Constant(lowering.INT32, 0))

    return types.float32(lowering.VECTOR), codegen


@intrinsic
def largest(typing, vector):
    """The greatest lane; any of them, or NaN, if there is a NaN."""

    def codegen(context, builder, signature, arguments):
        def larger_of(left: Any, right: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", left, right), left, right)

        return _fold(builder, arguments[0], larger_of)

    return types.float32(lowering.VECTOR), codegen


@intrinsic
def larger(typing, left, right):
    """The larger number of each lane, in one instruction on x86; the right one where either is NaN."""

    def codegen(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return lowering.VECTOR(lowering.VECTOR, lowering.VECTOR), codegen


def _magnitude_bits(builder: Any, vector: Any) -> Any:
    """Without their signs, numbers are in the order of their bits, and NaN is above all."""
    return builder.and_(builder.bitcast(vector, lowering.INTS), lowering.int_constant(0x7FFFFFFF))


@intrinsic
def larger_magnitude(typing, left, right):
    """Lane by lane the greater absolute value; NaN is greater than all."""

    def codegen(context, builder, signature, arguments):
        bits = [_magnitude_bits(builder, vector) for vector in arguments]
        greater = lowering.call(builder, f"llvm.umax.v{LANES}i32", bits)
        return builder.bitcast(greater, lowering.FLOATS)

    return lowering.VECTOR(lowering.VECTOR, lowering.VECTOR), codegen


@intrinsic
def largest_magnitude(typing, vector):
    """The greatest absolute value of all lanes; NaN if there is one."""

    def codegen(context, builder, signature, arguments):
        bits = _magnitude_bits(builder, arguments[0])
        greatest = lowering.call(builder, f"llvm.vector.reduce.umax.v{LANES}i32", [bits], lowering.INT32)
        return builder.bitcast(greatest, lowering.FLOAT)

    return types.float32(lowering.VECTOR), codegen


def _replaced_from(number: float) -> Any:
    def replace(typing, vector, count):
        def codegen(context, builder, signature, arguments):
            lanes = ir.Constant(lowering.INTS, list(range(LANES)))
            limit = lowering.splat(builder, builder.trunc(arguments[1], lowering.INT32), lowering.INTS)
            kept = builder.icmp_signed("<", lanes, limit)
            return builder.select(kept, arguments[0], lowering.constant(number))

        return lowering.VECTOR(lowering.VECTOR, types.intp), codegen

    return intrinsic(replace)


mask_from = _replaced_from(-math.inf)  # (vector, count): minus infinity in lane `count` and after
zero_from = _replaced_from(0.0)
