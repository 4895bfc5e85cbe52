"""Exponentials of vectors, by polynomials.

A power is taken apart into a whole number, which becomes the exponent, and the rest, of which the polynomial
is. Processors with AVX-512 do the one and the other in one instruction each.
"""

import math
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES

__all__ = ["EXP2_FLOOR", "EXP_FLOOR", "exp", "exp2", "exp2_rough"]

# Polynomials of least relative error, found with Remez' algorithm, highest power first.
# exp(r) for |r| <= log(2) / 2, to 2e-9:
EXP_TERMS = [
    0.0013836845755577087,
    0.008374815806746483,
    0.04166822507977486,
    0.16666419804096222,
    0.49999991059303284,
    1.0,
    1.0,
]
# 2 ** r for 0 <= r < 1, to 8e-8:
EXP2_TERMS = [
    0.0018775766948238015,
    0.00898933969438076,
    0.05582631751894951,
    0.24015361070632935,
    0.6931530833244324,
    0.9999999403953552,
]
# And to 8e-5, a fiftieth of what bfloat16 can tell apart:
EXP2_ROUGH_TERMS = [0.07802452147006989, 0.22606715559959412, 0.6958335638046265, 0.9999251961708069]
LOG2_HIGH = 0.693359375  # a float32 with so few bits that multiples of it are exact
LOG2_LOW = math.log(2) - LOG2_HIGH
EXP_FLOOR = -87.0  # below it the result is no normal number: it becomes zero
EXP2_FLOOR = -126.0

_HAS_SCALE = all(lowering.FEATURES.get(name, False) for name in ("avx512f", "avx512dq"))
_ALL_LANES = ir.Constant(lowering.SHORT, 0xFFFF)
_CURRENT_ROUNDING = ir.Constant(lowering.INT32, 4)
_DOWN = ir.Constant(lowering.INT32, 9)  # to a whole number, with no exception


def _at_least(builder: Any, x: Any, floor: float) -> Any:
    """NaN stays NaN. One instruction on x86."""
    limit = lowering.constant(floor)
    return builder.select(builder.fcmp_ordered("<", x, limit), limit, x)


def _polynomial(builder: Any, x: Any, terms: list[float]) -> Any:
    value = lowering.constant(terms[0])
    for term in terms[1:]:
        value = lowering.fma(builder, value, x, lowering.constant(term))
    return value


def _floor(builder: Any, x: Any) -> Any:
    return lowering.call(builder, f"llvm.floor.v{LANES}f32", [x])


def _scale(builder: Any, value: Any, power: Any) -> Any:
    """value * 2 ** power, where power is a whole number and the result a normal one."""
    if _HAS_SCALE:
        others = [value, _ALL_LANES, _CURRENT_ROUNDING]
        return lowering.call(builder, "llvm.x86.avx512.mask.scalef.ps.512", [value, power, *others])
    exponent = builder.shl(builder.fptosi(power, lowering.INTS), lowering.int_constant(23))
    return builder.bitcast(builder.add(builder.bitcast(value, lowering.INTS), exponent), lowering.FLOATS)


def _or_zero(builder: Any, value: Any, x: Any, floor: float) -> Any:
    """The value, but zero where x is below the floor, and NaN where x is."""
    is_below = builder.fcmp_ordered("<", x, lowering.constant(floor))
    value = builder.select(is_below, lowering.constant(0.0), value)
    return value if _HAS_SCALE else builder.select(builder.fcmp_ordered("ord", x, x), value, x)


@intrinsic
def exp(typing, vector):
    """The exponential of numbers up to 88; exactly zero below EXP_FLOOR; NaN stays NaN."""

    def codegen(context, builder, signature, arguments):
        x = _at_least(builder, arguments[0], EXP_FLOOR)
        power = _floor(
            builder, lowering.fma(builder, x, lowering.constant(1 / math.log(2)), lowering.constant(0.5))
        )
        rest = lowering.fma(builder, power, lowering.constant(-LOG2_HIGH), x)
        rest = lowering.fma(builder, power, lowering.constant(-LOG2_LOW), rest)
        value = _scale(builder, _polynomial(builder, rest, EXP_TERMS), power)
        return _or_zero(builder, value, arguments[0], EXP_FLOOR)

    return lowering.VECTOR(lowering.VECTOR), codegen


def _exp2(terms: list[float]) -> Any:
    def declare(typing, vector):
        def codegen(context, builder, signature, arguments):
            (x,) = arguments
            if _HAS_SCALE:
                others = [lowering.constant(0.0), _ALL_LANES, _CURRENT_ROUNDING]
                rest = lowering.call(builder, "llvm.x86.avx512.mask.reduce.ps.512", [x, _DOWN, *others])
                return _scale(builder, _polynomial(builder, rest, terms), x)
            raised = _at_least(builder, x, EXP2_FLOOR)
            power = _floor(builder, raised)
            value = _scale(builder, _polynomial(builder, builder.fsub(raised, power), terms), power)
            return _or_zero(builder, value, x, EXP2_FLOOR)

        return lowering.VECTOR(lowering.VECTOR), codegen

    return intrinsic(declare)


# 2 to the power of numbers up to 127; zero for minus infinity; NaN stays NaN. Below EXP2_FLOOR it is zero or
# no normal number. Relative to the result the error is that of the terms and of rounding the power.
exp2 = _exp2(EXP2_TERMS)
exp2_rough = _exp2(EXP2_ROUGH_TERMS)  # for results that are rounded to bfloat16, or weigh values of 8 bits
