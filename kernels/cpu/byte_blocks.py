"""Paged blocks of 8 bits, as the CPU keeps them: see `kernels.byte_cache`.

Four codes that are multiplied together lie side by side: dimensions of a key, tokens of a value. So the code
of dimension `dim` and slot `slot` lies, counted in bytes from a block's first of one head, at

    keys     dim // 4 * 4 * block_size + slot * 4 + dim % 4
    values   slot // 4 * 4 * head_dim + dim * 4 + slot % 4

and keys' codes are 128 more than they are, unsigned. The steps follow. Owns what reads and writes this order,
and how the queries that meet it are rounded.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.byte_cache import STEP_BYTES
from kernels.byte_linear import TINY, TOP
from kernels.cpu import lowering
from kernels.cpu.byte_rows import CODE_OFFSET, excess_of
from kernels.cpu.leaf import leaf
from kernels.cpu.lowering import LANES
from kernels.cpu.vectors import broadcast, larger_magnitude, largest_magnitude, load, multiply

__all__ = ["TOGETHER", "head_bytes", "load_steps", "round_query", "store_key_head", "store_value_head"]

TOGETHER = 4
ZERO, TINY_NUMBER, TOP_NUMBER, TOP_INVERSE = (np.float32(x) for x in (0, TINY, TOP, 1 / TOP))

BYTE = ir.IntType(8)
BYTES = ir.VectorType(BYTE, LANES)
WORDS = ir.VectorType(lowering.INT32, LANES // TOGETHER)
INDEX = ir.IntType(64)


@leaf
def head_bytes(head_dim, block_size):
    """What a block takes of one head."""
    return (head_dim + STEP_BYTES) * block_size


@intrinsic
def load_steps(typing, pool, place):
    """The steps of LANES slots, from a byte of the pool's on."""

    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], pool, arguments[1])
        return builder.load(builder.bitcast(address, lowering.FLOATS.as_pointer()), align=4)

    return lowering.VECTOR(pool, types.intp), codegen


@intrinsic
def _store_step(typing, pool, place, step):
    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], pool, arguments[1])
        builder.store(arguments[2], builder.bitcast(address, lowering.FLOAT.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(pool, types.intp, types.float32), codegen


def _codes(builder: Any, vector: Any) -> Any:
    """LANES numbers, at most TOP, rounded to codes of 8 bits; NaN to any."""
    return builder.trunc(lowering.whole_numbers(builder, vector), BYTES)


@intrinsic
def _store_key_codes(typing, pool, place, stride, vector):
    """LANES dimensions of one slot: `stride` bytes from four of them to the next four."""

    def codegen(context, builder, signature, arguments):
        data, start, step, value = arguments
        codes = builder.xor(_codes(builder, value), ir.Constant(BYTES, [CODE_OFFSET] * LANES))
        words = builder.bitcast(codes, WORDS)
        for index in range(WORDS.count):
            word = builder.extract_element(words, ir.Constant(lowering.INT32, index))
            target = lowering.address(context, builder, data, pool, start)
            builder.store(word, builder.bitcast(target, lowering.INT32.as_pointer()), align=1)
            start = builder.add(start, step)
        return context.get_dummy_value()

    return types.none(pool, types.intp, types.intp, lowering.VECTOR), codegen


@intrinsic
def _store_value_codes(typing, pool, place, vector):
    """LANES dimensions of one slot, from its first one's byte on; nothing of the slots beside it."""

    def codegen(context, builder, signature, arguments):
        data, start, value = arguments
        codes = _codes(builder, value)
        for index in range(LANES):
            code = builder.extract_element(codes, ir.Constant(lowering.INT32, index))
            offset = builder.add(start, ir.Constant(INDEX, TOGETHER * index))
            builder.store(code, lowering.address(context, builder, data, pool, offset))
        return context.get_dummy_value()

    return types.none(pool, types.intp, lowering.VECTOR), codegen


@intrinsic
def _store_query_codes(typing, sums, codes, place, vector):
    """LANES dimensions side by side. Returns the sums, whose lanes are integers, with the codes added."""

    def codegen(context, builder, signature, arguments):
        before, data, start, value = arguments
        whole = lowering.whole_numbers(builder, value)
        target = lowering.address(context, builder, data, codes, start)
        builder.store(builder.trunc(whole, BYTES), builder.bitcast(target, BYTES.as_pointer()), align=1)
        total = builder.add(builder.bitcast(before, lowering.INTS), whole)
        return builder.bitcast(total, lowering.FLOATS)

    return lowering.VECTOR(lowering.VECTOR, codes, types.intp, lowering.VECTOR), codegen


@leaf
def _step_and_inverse(x, start, head_dim):
    peaks = broadcast(ZERO)
    for dim in range(0, head_dim, LANES):
        peaks = larger_magnitude(peaks, load(x, start + dim))
    peak = largest_magnitude(peaks)
    if peak < TINY_NUMBER:
        return ZERO, ZERO
    return peak * TOP_INVERSE + (peak - peak), TOP_NUMBER / peak


@leaf
def round_query(x, start, head_dim, codes, place):
    """A query's head, rounded as a key's is. Returns its step, and by how much its sums of products with
    keys' codes are too large.
    """
    step, inverse = _step_and_inverse(x, start, head_dim)
    factor, sums = broadcast(inverse), broadcast(ZERO)
    for dim in range(0, head_dim, LANES):
        sums = _store_query_codes(sums, codes, place + dim, multiply(load(x, start + dim), factor))
    return step, excess_of(sums)


@leaf
def store_key_head(x, start, head_dim, keys, base, slot, block_size):
    """A head of one token's key, rounded into a slot of the block whose bytes of that head begin at `base`.

    `head_dim` is a multiple of LANES.
    """
    step, inverse = _step_and_inverse(x, start, head_dim)
    for dim in range(0, head_dim, LANES):
        codes = multiply(load(x, start + dim), broadcast(inverse))
        _store_key_codes(keys, base + dim * block_size + TOGETHER * slot, TOGETHER * block_size, codes)
    _store_step(keys, base + head_dim * block_size + STEP_BYTES * slot, step)


@leaf
def store_value_head(x, start, head_dim, values, base, slot, block_size):
    """As `store_key_head`, of a value."""
    step, inverse = _step_and_inverse(x, start, head_dim)
    first = base + slot // TOGETHER * TOGETHER * head_dim + slot % TOGETHER
    for dim in range(0, head_dim, LANES):
        codes = multiply(load(x, start + dim), broadcast(inverse))
        _store_value_codes(values, first + TOGETHER * dim, codes)
    _store_step(values, base + head_dim * block_size + STEP_BYTES * slot, step)
