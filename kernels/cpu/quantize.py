"""Rows rounded to 8 bits in groups, compiled for the CPU: the inputs of grouped products.

Owns one group's rounding. `kernels.grouped.quantize_inputs` is the definition.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES
from kernels.cpu.vectors import broadcast, larger_magnitude, largest_magnitude, load, multiply
from kernels.grouped import GROUP, TINY, TOP

__all__ = ["quantize_row"]

ZERO, TOP_NUMBER, TOP_INVERSE, TINY_NUMBER = (np.float32(value) for value in (0, TOP, 1 / TOP, TINY))
BYTES = ir.VectorType(ir.IntType(8), LANES)


@intrinsic
def _store_codes(typing, numbers, codes, offset):
    """LANES numbers rounded to the nearest integer, ties to even, kept within TOP. Returns their sum."""

    def codegen(context, builder, signature, arguments):
        number = lowering.call(builder, f"llvm.rint.v{LANES}f32", [arguments[0]])
        # The numeric bound is what these choose over NaN.
        number = lowering.call(builder, f"llvm.minnum.v{LANES}f32", [number, lowering.constant(TOP)])
        number = lowering.call(builder, f"llvm.maxnum.v{LANES}f32", [number, lowering.constant(-TOP)])
        whole = builder.fptosi(number, lowering.INTS)
        place = lowering.address(context, builder, arguments[1], codes, arguments[2])
        builder.store(builder.trunc(whole, BYTES), builder.bitcast(place, BYTES.as_pointer()), align=1)
        return lowering.call(builder, f"llvm.vector.reduce.add.v{LANES}i32", [whole], lowering.INT32)

    return types.int32(lowering.VECTOR, codes, types.intp), codegen


@numba.njit
def _quantize_group(x, start, codes, factor, place, steps, sums):
    first, second = load(x, start), load(x, start + LANES)
    peak = largest_magnitude(larger_magnitude(first, second))
    step, inverse = ZERO, ZERO
    if not peak < TINY_NUMBER:
        step = peak * TOP_INVERSE + (peak - peak)
        inverse = TOP_NUMBER / peak
    row_sum = _store_codes(multiply(first, broadcast(inverse)), codes, start)
    row_sum += _store_codes(multiply(second, broadcast(inverse)), codes, start + LANES)
    steps[place] = step
    sums[place] = factor * row_sum


@numba.njit
def quantize_row(x, row, num_groups, factor, codes, steps, sums):
    """One row of `x` [num_rows, num_groups * GROUP] into the flat arrays of all rows' groups.

    The sums are those of the codes, times the factor.
    """
    for place in range(row * num_groups, (row + 1) * num_groups):
        _quantize_group(x, place * GROUP, codes, factor, place, steps, sums)
