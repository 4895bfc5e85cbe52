"""The integer sums of attention over blocks of 8 bits: what queries and keys, weights and values come to.

Owns the two ways to add them up: vectors, a few rows at a time, and AMX's tile registers. Both are exact, and
so agree. A query is a row of bytes, and its sums with keys are rows of int32, SCORE_STRIDE apart. Weights are
bytes in two parts, high and low, and their rows lie in groups as tile registers take them: the high parts of
GROUP_ROWS rows, then their low parts. Sums of values are int32 in the same groups, [2, 2 * MAX_ROWS, LANES]:
two columns of LANES dimensions.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.amx import (
    LEFT,
    MORE_SUMS,
    OTHER,
    OTHER_LEFT,
    OTHER_RIGHT,
    RIGHT,
    SUMS,
    WIDE,
    add_byte_products,
    add_unsigned_products,
    clear,
    load,
    store,
)
from kernels.cpu.attention_ahead import ask
from kernels.cpu.attention_columns import SCORE_STRIDE
from kernels.cpu.byte_blocks import TOGETHER
from kernels.cpu.integer_tiles import HAS_VNNI, dot_bytes
from kernels.cpu.leaf import leaf
from kernels.cpu.tiles import zero_tile
from kernels.cpu.vectors import LANES
from kernels.partitions import PARTITION_TOKENS

__all__ = [
    "DEPTH",
    "GROUP_ROWS",
    "MAX_ROWS",
    "SUMS_SIZE",
    "WEIGHT_PART",
    "WEIGHT_STRIDE",
    "copy_values",
    "exact_scores",
    "join_weighed",
    "place_of",
    "score_registers",
    "score_vectors",
    "weigh_registers",
    "weigh_vectors",
]

GROUP_ROWS = 8
TILE_ROWS = 2 * GROUP_ROWS  # high parts and low parts
MAX_ROWS = 2 * GROUP_ROWS
HALF_SIZE = MAX_ROWS * 2 * LANES  # sums of one run or column
SUMS_SIZE = 2 * HALF_SIZE
VECTOR_BYTES = 64
SCORE_BYTES = 4 * SCORE_STRIDE
DEPTH = 64  # dimensions or tokens that a tile register holds of each row
WEIGHT_PART = 256  # what the high part of a weight counts
WEIGHT_STRIDE = PARTITION_TOKENS + VECTOR_BYTES  # whole lines, and not a power of two of them

INDEX = ir.IntType(64)


@leaf
def place_of(row):
    """Which row of its group's register holds a row's high parts; the low ones are GROUP_ROWS further."""
    return row // GROUP_ROWS * TILE_ROWS + row % GROUP_ROWS


@intrinsic
def _add_keys(typing, tile, queries, place, stride, keys, first, second):
    """The tile plus TOGETHER products: rows of queries, from `place` on and `stride` bytes apart, times the
    vectors of keys at two places. Its vectors are int32.
    """

    def codegen(context, builder, signature, arguments):
        value, data, row, step, keys_data, *places = arguments
        vectors = [_vector(context, builder, keys_data, keys, place) for place in places]
        for number in range(0, tile.rows, 2):
            four = _four(context, builder, data, queries, row)
            value = _dot(builder, value, number, [(vector, four) for vector in vectors])
            row = builder.add(row, step)
        return value

    index = types.intp
    return tile(tile, queries, index, index, keys, index, index), codegen


@intrinsic
def _add_values(typing, tile, weights, high, low, stride, values, first, second):
    """The same: rows of weights, whose parts begin at `high` and `low`, times the vectors of values."""

    def codegen(context, builder, signature, arguments):
        value, data, *starts, step, values_data, one, other = arguments
        vectors = [_vector(context, builder, values_data, values, place) for place in (one, other)]
        for number in range(0, tile.rows, 2):
            part = number // 2 % 2
            four = _four(context, builder, data, weights, starts[part])
            value = _dot(builder, value, number, [(four, vector) for vector in vectors])
            starts[part] = builder.add(starts[part], step)
        return value

    index = types.intp
    return tile(tile, weights, index, index, index, values, index, index), codegen


def _vector(context: Any, builder: Any, data: Any, kind: Any, place: Any) -> Any:
    address = lowering.address(context, builder, data, kind, place)
    return builder.load(builder.bitcast(address, lowering.INTS.as_pointer()), align=1)


def _four(context: Any, builder: Any, data: Any, kind: Any, place: Any) -> Any:
    """TOGETHER bytes, in every lane."""
    address = lowering.address(context, builder, data, kind, place)
    word = builder.load(builder.bitcast(address, lowering.INT32.as_pointer()), align=1)
    return lowering.splat(builder, word, lowering.INTS)


def _dot(builder: Any, tile: Any, number: int, operands: list[tuple[Any, Any]]) -> Any:
    """The tile with products, unsigned times signed, added to its vectors from a number on."""
    for index, pair in enumerate(operands, number):
        sums = builder.bitcast(builder.extract_value(tile, index), lowering.INTS)
        sums = dot_bytes(builder, sums, *pair, has_vnni=HAS_VNNI)
        tile = builder.insert_value(tile, builder.bitcast(sums, lowering.FLOATS), index)
    return tile


def _storing(stride: int, num_parts: int) -> Any:
    def store_sums(typing, tile, sums, place, other):
        """Of each row of the tile its parts' sums: both halves, each at its own place."""

        def codegen(context, builder, signature, arguments):
            for number in range(tile.rows):
                half, part, row = number % 2, number // 2 % num_parts, number // (2 * num_parts)
                skip = ir.Constant(INDEX, (part * GROUP_ROWS + row) * stride)
                start = builder.add(arguments[2 + half], skip)
                address = lowering.address(context, builder, arguments[1], sums, start)
                vector = builder.extract_value(arguments[0], number)
                builder.store(vector, builder.bitcast(address, lowering.FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.none(tile, sums, types.intp, types.intp), codegen

    return intrinsic(store_sums)


_store_scores, _store_weighed = _storing(SCORE_STRIDE, 1), _storing(LANES, 2)


@intrinsic
def exact_scores(typing, sums, place, excess):
    """LANES sums with keys, which are too large by `excess`, as one vector of floats."""

    def codegen(context, builder, signature, arguments):
        found = _vector(context, builder, arguments[0], sums, arguments[1])
        exact = builder.sub(found, lowering.splat(builder, arguments[2], lowering.INTS))
        return builder.sitofp(exact, lowering.FLOATS)

    return lowering.VECTOR(sums, types.intp, types.int32), codegen


@intrinsic
def join_weighed(typing, sums, place):
    """LANES sums of values, those with the high parts at a place, as one vector of floats."""

    def codegen(context, builder, signature, arguments):
        high = _vector(context, builder, arguments[0], sums, arguments[1])
        place = builder.add(arguments[1], ir.Constant(INDEX, GROUP_ROWS * LANES))
        low = _vector(context, builder, arguments[0], sums, place)
        high = builder.mul(high, lowering.int_constant(WEIGHT_PART))
        return builder.sitofp(builder.add(high, low), lowering.FLOATS)  # what is lost above comes back

    return lowering.VECTOR(sums, types.intp), codegen


@intrinsic
def _copy_line(typing, source, place, target, start):
    def codegen(context, builder, signature, arguments):
        addresses = [
            lowering.address(context, builder, arguments[at], signature.args[at], arguments[at + 1])
            for at in (0, 2)
        ]
        source, target = (builder.bitcast(address, lowering.INTS.as_pointer()) for address in addresses)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.none(source, types.intp, target, types.intp), codegen


@leaf
def copy_values(values, places, num_runs, head_dim, copy):
    """Runs of values one behind the other, as `weigh_registers` takes them."""
    size = LANES * head_dim
    for run in range(num_runs):
        for byte in range(0, size, VECTOR_BYTES):
            _copy_line(values, places[run] + byte, copy, run * size + byte)


def _score_rows(rows: int) -> Any:
    """Compile the sums of `rows` query rows with two runs of keys."""
    num_vectors = 2 * rows

    @leaf
    def score_rows(queries, row, head_dim, keys, places, run, other, block_size, sums):
        tile = zero_tile(num_vectors)
        first, place, more = row * head_dim, places[run], places[other]
        for dim in range(0, head_dim, TOGETHER):
            skip = dim * block_size
            tile = _add_keys(tile, queries, first + dim, head_dim, keys, place + skip, more + skip)
        start = row * SCORE_STRIDE
        _store_scores(tile, sums, start + run * LANES, start + other * LANES)

    return score_rows


def _weigh_rows(rows: int) -> Any:
    """Compile the sums of `rows` rows of weights with two columns of values."""
    num_vectors = 4 * rows

    @leaf
    def weigh_rows(weights, row, head_dim, num_runs, values, places, dim, ahead, sums):
        tile = zero_tile(num_vectors)
        for run in range(num_runs):
            ask(ahead)
            high = place_of(row) * WEIGHT_STRIDE + run * LANES
            low = high + GROUP_ROWS * WEIGHT_STRIDE
            for slot in range(0, LANES, TOGETHER):
                place = places[run] + slot * head_dim
                column, other = place + TOGETHER * dim, place + TOGETHER * (dim + LANES)
                tile = _add_values(
                    tile, weights, high + slot, low + slot, WEIGHT_STRIDE, values, column, other
                )
        start = place_of(row) * LANES
        _store_weighed(tile, sums, start, start + HALF_SIZE)

    return weigh_rows


_score_1, _score_2, _score_3, _score_4 = (_score_rows(rows) for rows in (1, 2, 3, 4))
_weigh_1, _weigh_2, _weigh_3, _weigh_4 = (_weigh_rows(rows) for rows in (1, 2, 3, 4))


@leaf
def score_vectors(queries, num_rows, head_dim, keys, places, num_runs, block_size, ahead, sums):
    """Sums with runs of keys: int32, rows SCORE_STRIDE apart."""
    for run in range(0, num_runs, 2):
        other = min(run + 1, num_runs - 1)  # may be the same once more, and agrees with itself
        ask(ahead)
        ask(ahead)
        for row in range(0, num_rows, 4):
            if num_rows - row > 3:
                _score_4(queries, row, head_dim, keys, places, run, other, block_size, sums)
            elif num_rows - row == 3:
                _score_3(queries, row, head_dim, keys, places, run, other, block_size, sums)
            elif num_rows - row == 2:
                _score_2(queries, row, head_dim, keys, places, run, other, block_size, sums)
            else:
                _score_1(queries, row, head_dim, keys, places, run, other, block_size, sums)


@leaf
def weigh_vectors(weights, num_rows, head_dim, num_runs, values, places, dim, ahead, sums):
    """Sums of the two columns of values from a dimension on."""
    for row in range(0, num_rows, 4):
        if num_rows - row > 3:
            _weigh_4(weights, row, head_dim, num_runs, values, places, dim, ahead, sums)
        elif num_rows - row == 3:
            _weigh_3(weights, row, head_dim, num_runs, values, places, dim, ahead, sums)
        elif num_rows - row == 2:
            _weigh_2(weights, row, head_dim, num_runs, values, places, dim, ahead, sums)
        else:
            _weigh_1(weights, row, head_dim, num_runs, values, places, dim, ahead, sums)


@leaf
def score_registers(queries, head_dim, keys, places, num_runs, block_size, ahead, sums):
    """As `score_vectors`, of MAX_ROWS rows. `head_dim` is a multiple of DEPTH."""
    for run in range(num_runs):
        ask(ahead)
        clear(SUMS)
        for dim in range(0, head_dim, DEPTH):
            load(OTHER, keys, places[run] + dim * block_size, TOGETHER * block_size)
            load(WIDE, queries, dim, head_dim)
            add_byte_products(SUMS, WIDE, OTHER)
        store(SUMS, sums, run * LANES, SCORE_BYTES)


@leaf
def weigh_registers(weights, num_rows, head_dim, num_runs, values, dim, ahead, sums):
    """As `weigh_vectors`, of values from `copy_values`. Weights are zero up to a multiple of DEPTH tokens."""
    if num_rows > GROUP_ROWS:
        _weigh_two(weights, head_dim, num_runs, values, dim, ahead, sums)
    else:
        _weigh_one(weights, head_dim, num_runs, values, dim, ahead, sums)


@leaf
def _weigh_one(weights, head_dim, num_runs, values, dim, ahead, sums):
    clear(SUMS)
    clear(MORE_SUMS)
    stride = TOGETHER * head_dim
    for token in range(0, num_runs * LANES, DEPTH):
        for _ in range(DEPTH // LANES):
            ask(ahead)
        load(LEFT, weights, token, WEIGHT_STRIDE)
        load(RIGHT, values, token * head_dim + TOGETHER * dim, stride)
        add_unsigned_products(SUMS, LEFT, RIGHT)
        load(OTHER_RIGHT, values, token * head_dim + TOGETHER * (dim + LANES), stride)
        add_unsigned_products(MORE_SUMS, LEFT, OTHER_RIGHT)
    store(SUMS, sums, 0, VECTOR_BYTES)
    store(MORE_SUMS, sums, HALF_SIZE, VECTOR_BYTES)


@leaf
def _weigh_two(weights, head_dim, num_runs, values, dim, ahead, sums):
    clear(SUMS)
    clear(MORE_SUMS)
    clear(WIDE)  # here two more registers of sums
    clear(OTHER)
    stride, more = TOGETHER * head_dim, TILE_ROWS * WEIGHT_STRIDE
    for token in range(0, num_runs * LANES, DEPTH):
        for _ in range(DEPTH // LANES):
            ask(ahead)
        load(LEFT, weights, token, WEIGHT_STRIDE)
        load(OTHER_LEFT, weights, more + token, WEIGHT_STRIDE)
        load(RIGHT, values, token * head_dim + TOGETHER * dim, stride)
        add_unsigned_products(SUMS, LEFT, RIGHT)
        add_unsigned_products(WIDE, OTHER_LEFT, RIGHT)
        load(OTHER_RIGHT, values, token * head_dim + TOGETHER * (dim + LANES), stride)
        add_unsigned_products(MORE_SUMS, LEFT, OTHER_RIGHT)
        add_unsigned_products(OTHER, OTHER_LEFT, OTHER_RIGHT)
    store(SUMS, sums, 0, VECTOR_BYTES)
    store(MORE_SUMS, sums, HALF_SIZE, VECTOR_BYTES)
    store(WIDE, sums, TILE_ROWS * LANES, VECTOR_BYTES)
    store(OTHER, sums, HALF_SIZE + TILE_ROWS * LANES, VECTOR_BYTES)
