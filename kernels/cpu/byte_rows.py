"""Rows of inputs rounded to 15 bits, and sums of their products turned back into numbers, for the CPU.

Owns both ends of a product of bytes, each a loop over vectors. `kernels.byte_linear` is the definition.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.byte_linear import INPUT_TOP, PART, TINY
from kernels.cpu import lowering
from kernels.cpu.byte_tiles import TILE_OUTPUTS
from kernels.cpu.leaf import leaf
from kernels.cpu.lowering import LANES
from kernels.cpu.vectors import broadcast, larger_magnitude, largest_magnitude, load, multiply, multiply_add

__all__ = ["CODE_OFFSET", "excess_of", "product_vector", "split_row"]

ZERO, TINY_NUMBER, TOP_NUMBER, TOP_INVERSE = (np.float32(x) for x in (0, TINY, INPUT_TOP, 1 / INPUT_TOP))
CODE_OFFSET = 128
BYTES = ir.VectorType(ir.IntType(8), LANES)
INDEX = ir.IntType(64)


@intrinsic
def _store_parts(typing, numbers, sums, high, low, offset):
    """Store LANES numbers, at most INPUT_TOP, as their high and low parts; NaN as anything.

    Returns the parts' sums, lane by lane, as bits.
    """

    def codegen(context, builder, signature, arguments):
        code = lowering.whole_numbers(builder, arguments[0])
        raised = builder.add(code, lowering.int_constant(PART // 2))
        upper = builder.ashr(raised, lowering.int_constant(PART.bit_length() - 1))
        lower = builder.and_(raised, lowering.int_constant(PART - 1))
        lower = builder.sub(lower, lowering.int_constant(PART // 2))
        totals = []
        for index, (data, kind, part) in enumerate(((arguments[2], high, upper), (arguments[3], low, lower))):
            place = lowering.address(context, builder, data, kind, arguments[4])
            builder.store(builder.trunc(part, BYTES), builder.bitcast(place, BYTES.as_pointer()), align=1)
            before = builder.bitcast(builder.extract_value(arguments[1], index), lowering.INTS)
            totals.append(builder.bitcast(builder.add(before, part), lowering.FLOATS))
        return context.make_tuple(builder, signature.return_type, totals)

    return sums(lowering.VECTOR, sums, high, low, types.intp), codegen


@intrinsic
def excess_of(typing, sums):
    """What codes that are CODE_OFFSET too large make of bytes with these sums, integers in the lanes."""

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], lowering.INTS)
        total = lowering.call(builder, f"llvm.vector.reduce.add.v{LANES}i32", [bits], lowering.INT32)
        return builder.mul(total, ir.Constant(lowering.INT32, CODE_OFFSET))

    return types.int32(lowering.VECTOR), codegen


@leaf
def split_row(x, start, size, row, num_inputs, inputs):
    """`size` numbers of `x` from `start` on, a multiple of LANES, as a row of inputs.

    `inputs` are, of all rows: high and low parts, int8 [num_rows, num_inputs], zeros past `size`; steps,
    float32 [num_rows]; and by how much the sums of their products with packed codes are too large, int32
    [num_rows * 2], high parts' and low parts'.
    """
    high, low, steps, excesses = inputs
    peaks = broadcast(ZERO)
    for place in range(0, size, LANES):
        peaks = larger_magnitude(peaks, load(x, start + place))
    peak = largest_magnitude(peaks)
    step, inverse = ZERO, ZERO
    if not peak < TINY_NUMBER:
        step = peak * TOP_INVERSE + (peak - peak)
        inverse = TOP_NUMBER / peak
    factor, sums = broadcast(inverse), (broadcast(ZERO), broadcast(ZERO))
    for place in range(0, size, LANES):
        scaled = multiply(load(x, start + place), factor)
        sums = _store_parts(scaled, sums, high, low, row * num_inputs + place)
    for place in range(size, num_inputs, LANES):
        _store_parts(broadcast(ZERO), sums, high, low, row * num_inputs + place)
    steps[row] = step
    excesses[2 * row], excesses[2 * row + 1] = excess_of(sums[0]), excess_of(sums[1])


@intrinsic
def _exact(typing, sums, place, excesses, row):
    """The exact sums of LANES outputs as one float. Those with the high parts begin at `place`."""

    def codegen(context, builder, signature, arguments):
        floats = []
        for part in range(2):
            index = builder.add(arguments[1], ir.Constant(INDEX, part * TILE_OUTPUTS))
            address = lowering.address(context, builder, arguments[0], sums, index)
            plain = builder.load(builder.bitcast(address, lowering.INTS.as_pointer()), align=4)
            index = builder.add(builder.mul(arguments[3], ir.Constant(INDEX, 2)), ir.Constant(INDEX, part))
            excess = builder.load(lowering.address(context, builder, arguments[2], excesses, index))
            exact = builder.sub(plain, lowering.splat(builder, excess, lowering.INTS))
            floats.append(builder.sitofp(exact, lowering.FLOATS))
        return lowering.fma(builder, floats[0], lowering.constant(float(PART)), floats[1])

    return lowering.VECTOR(sums, types.intp, excesses, types.intp), codegen


@leaf
def product_vector(sums, place, inputs, row, scales, bias):
    """LANES outputs of one row, whose sums begin at `place`; scales and bias are vectors."""
    _, _, steps, excesses = inputs
    factor = multiply(scales, broadcast(steps[row]))
    return multiply_add(_exact(sums, place, excesses, row), factor, bias)
