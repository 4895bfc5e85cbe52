"""Vectors of LANES float32 numbers, as values that compiled functions compute with.

Owns the operations on single numbers and vectors. Offsets count elements from an array's first, whatever its
dimensions; nothing checks them.
"""

import math
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
    "exp",
    "largest",
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


@intrinsic
def total(typing, vector):
    """The sum of the lanes, always added in the same order."""

    def codegen(context, builder, signature, arguments):
        value = arguments[0]
        width = LANES
        while width > 1:
            width //= 2
            upper = ir.Constant(ir.VectorType(lowering.INT32, width), list(range(width, 2 * width)))
            lower = ir.Constant(ir.VectorType(lowering.INT32, width), list(range(width)))
            value = builder.fadd(
                builder.shuffle_vector(value, value, lower), builder.shuffle_vector(value, value, upper)
            )
        return builder.extract_element(value, ir.Constant(lowering.INT32, 0))

    return types.float32(lowering.VECTOR), codegen


@intrinsic
def largest(typing, vector):
    """The greatest lane."""

    def codegen(context, builder, signature, arguments):
        return lowering.call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", [arguments[0]], lowering.FLOAT)

    return types.float32(lowering.VECTOR), codegen


@intrinsic
def mask_from(typing, vector, count):
    """Minus infinity in lane `count` and after."""

    def codegen(context, builder, signature, arguments):
        lanes = ir.Constant(lowering.INTS, list(range(LANES)))
        limit = lowering.splat(builder, builder.trunc(arguments[1], lowering.INT32), lowering.INTS)
        kept = builder.icmp_signed("<", lanes, limit)
        return builder.select(kept, arguments[0], lowering.constant(-math.inf))

    return lowering.VECTOR(lowering.VECTOR, types.intp), codegen


# exp(r) for |r| <= log(2) / 2 as a polynomial, highest power first: the Taylor series up to r^7 / 7!, which
# leaves a relative error under 1e-8.
EXP_TERMS = [1 / math.factorial(power) for power in range(7, -1, -1)]
LOG2_HIGH = 0.693359375  # a float32 with so few bits that multiples of it are exact
LOG2_LOW = math.log(2) - LOG2_HIGH
EXP_FLOOR = -87.0  # below it the result is no normal number: it becomes zero


@intrinsic
def exp(typing, vector):
    """The exponential of numbers up to 88; exactly zero below EXP_FLOOR; NaN stays NaN."""

    def codegen(context, builder, signature, arguments):
        x = lowering.call(builder, f"llvm.maxnum.v{LANES}f32", [arguments[0], lowering.constant(EXP_FLOOR)])
        power = lowering.call(
            builder,
            f"llvm.floor.v{LANES}f32",
            [lowering.fma(builder, x, lowering.constant(1 / math.log(2)), lowering.constant(0.5))],
        )
        rest = lowering.fma(builder, power, lowering.constant(-LOG2_HIGH), x)
        rest = lowering.fma(builder, power, lowering.constant(-LOG2_LOW), rest)
        value = lowering.constant(EXP_TERMS[0])
        for term in EXP_TERMS[1:]:
            value = lowering.fma(builder, value, rest, lowering.constant(term))
        exponent = builder.shl(builder.fptosi(power, lowering.INTS), lowering.int_constant(23))
        value = builder.bitcast(builder.add(builder.bitcast(value, lowering.INTS), exponent), lowering.FLOATS)
        value = builder.select(
            builder.fcmp_ordered("<", arguments[0], lowering.constant(EXP_FLOOR)),
            lowering.constant(0.0),
            value,
        )
        return builder.select(builder.fcmp_ordered("ord", arguments[0], arguments[0]), value, arguments[0])

    return lowering.VECTOR(lowering.VECTOR), codegen
