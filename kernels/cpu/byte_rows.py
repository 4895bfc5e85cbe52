"""Rows of inputs rounded to 15 bits, and sums of their products turned back into numbers, for the CPU.

Owns both ends of a product of bytes, each a loop over vectors. `kernels.byte_linear` is the definition.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.byte_linear import INPUT_TOP, PART, TINY
from kernels.cpu import lowering
from kernels.cpu.byte_tiles import TILE_OUTPUTS
from kernels.cpu.leaf import leaf
from kernels.cpu.lowering import LANES
from kernels.cpu.vectors import broadcast, load, multiply, multiply_add

__all__ = ["product_vector", "split_row"]

ZERO, TINY_NUMBER, TOP_NUMBER, TOP_INVERSE = (np.float32(x) for x in (0, TINY, INPUT_TOP, 1 / INPUT_TOP))
BYTES = ir.VectorType(ir.IntType(8), LANES)
INDEX = ir.IntType(64)


@intrinsic
def _larger(typing, peak, vector):
    """Lane by lane the greater absolute value, as bits; NaN is greater than all. `peak` starts as zeros."""

    def codegen(context, builder, signature, arguments):
        # Without their signs, numbers are in the order of their bits, and NaN is above all.
        bits = [
            builder.and_(builder.bitcast(value, lowering.INTS), lowering.int_constant(0x7FFFFFFF))
            for value in arguments
        ]
        greater = lowering.call(builder, f"llvm.umax.v{LANES}i32", bits)
        return builder.bitcast(greater, lowering.FLOATS)

    return lowering.VECTOR(lowering.VECTOR, lowering.VECTOR), codegen


@intrinsic
def _largest(typing, peak):
    """The greatest of all lanes of what `_larger` gave."""

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], lowering.INTS)
        greatest = lowering.call(builder, f"llvm.vector.reduce.umax.v{LANES}i32", [bits], lowering.INT32)
        return builder.bitcast(greatest, lowering.FLOAT)

    return types.float32(lowering.VECTOR), codegen


def _sum(builder: Any, vector: Any) -> Any:
    return lowering.call(builder, f"llvm.vector.reduce.add.v{LANES}i32", [vector], lowering.INT32)


@intrinsic
def _store_parts(typing, numbers, high, low, offset):
    """LANES numbers as their high and low parts. Returns the parts' sums."""

    def codegen(context, builder, signature, arguments):
        number = lowering.call(builder, f"llvm.rint.v{LANES}f32", [arguments[0]])
        # The numeric bound is what these choose over NaN.
        number = lowering.call(builder, f"llvm.minnum.v{LANES}f32", [number, lowering.constant(INPUT_TOP)])
        number = lowering.call(builder, f"llvm.maxnum.v{LANES}f32", [number, lowering.constant(-INPUT_TOP)])
        code = builder.fptosi(number, lowering.INTS)
        raised = builder.add(code, lowering.int_constant(PART // 2))
        upper = builder.ashr(raised, lowering.int_constant(PART.bit_length() - 1))
        lower = builder.sub(code, builder.mul(upper, lowering.int_constant(PART)))
        for data, kind, part in ((arguments[1], high, upper), (arguments[2], low, lower)):
            place = lowering.address(context, builder, data, kind, arguments[3])
            builder.store(builder.trunc(part, BYTES), builder.bitcast(place, BYTES.as_pointer()), align=1)
        return context.make_tuple(
            builder, signature.return_type, [_sum(builder, upper), _sum(builder, lower)]
        )

    result = types.UniTuple(types.int32, 2)
    return result(lowering.VECTOR, high, low, types.intp), codegen


@leaf
def split_row(x, start, size, row, num_inputs, inputs):
    """`size` numbers of `x` from `start` on, a multiple of LANES, as a row of inputs.

    `inputs` are, of all rows: high and low parts, int8 [num_rows, num_inputs], zeros past `size`; steps,
    float32 [num_rows]; and sums of the parts, int32 [num_rows * 2].
    """
    high, low, steps, sums = inputs
    peaks = broadcast(ZERO)
    for place in range(0, size, LANES):
        peaks = _larger(peaks, load(x, start + place))
    peak = _largest(peaks)
    step, inverse = ZERO, ZERO
    if not peak < TINY_NUMBER:
        step = peak * TOP_INVERSE + (peak - peak)
        inverse = TOP_NUMBER / peak
    high_sum, low_sum = np.int32(0), np.int32(0)
    for place in range(0, size, LANES):
        scaled = multiply(load(x, start + place), broadcast(inverse))
        high_part, low_part = _store_parts(scaled, high, low, row * num_inputs + place)
        high_sum += high_part
        low_sum += low_part
    for place in range(size, num_inputs, LANES):
        _store_parts(broadcast(ZERO), high, low, row * num_inputs + place)
    steps[row] = step
    sums[2 * row], sums[2 * row + 1] = high_sum, low_sum


@intrinsic
def _correct(typing, sums, high, low, high_sum, low_sum):
    """The exact sums of LANES outputs as one float: `high` and `low` are their places in `sums`.

    Packed codes are 128 more than they are: so much of the inputs' own sums is taken off.
    """

    def codegen(context, builder, signature, arguments):
        floats = []
        for place, total in ((arguments[1], arguments[3]), (arguments[2], arguments[4])):
            address = lowering.address(context, builder, arguments[0], sums, place)
            plain = builder.load(builder.bitcast(address, lowering.INTS.as_pointer()), align=4)
            excess = builder.mul(total, ir.Constant(lowering.INT32, 128))
            exact = builder.sub(plain, lowering.splat(builder, excess, lowering.INTS))
            floats.append(builder.sitofp(exact, lowering.FLOATS))
        return lowering.fma(builder, floats[0], lowering.constant(float(PART)), floats[1])

    return lowering.VECTOR(sums, types.intp, types.intp, types.int32, types.int32), codegen


@leaf
def product_vector(sums, place, column, inputs, row, scales, bias, output):
    """LANES outputs of one row, whose sums begin at `place`, from `output` on."""
    _, _, steps, totals = inputs
    high = place + column * LANES
    exact = _correct(sums, high, high + TILE_OUTPUTS, totals[2 * row], totals[2 * row + 1])
    factor = multiply(load(scales, output), broadcast(steps[row]))
    return multiply_add(exact, factor, load(bias, output))
