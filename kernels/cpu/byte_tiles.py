"""Sums of products of bytes: what some rows of inputs and the codes of TILE_OUTPUTS outputs come to.

Owns the order in which a packed matrix holds its codes, and the two ways to add them up: vectors, a few rows
at a time, and tile registers, ROWS at a time. Both are exact, and so agree.

Codes are packed as uint8 [num_tiles, num_inputs / DEPTH, COLUMNS, DEPTH / 4, LANES, 4], 128 more than they
are: a vector holds 4 inputs of LANES outputs, and a tile register DEPTH of them. Sums are written as int32
[rows, 2, COLUMNS, LANES]: with the inputs' high parts, then with their low parts.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.amx import add_byte_products, clear, load, store
from kernels.cpu.integer_tiles import HAS_VNNI, dot_bytes
from kernels.cpu.leaf import leaf
from kernels.cpu.pairs import prefetch
from kernels.cpu.tiles import zero_tile
from kernels.cpu.vectors import LANES

__all__ = ["COLUMNS", "DEPTH", "ROWS", "SUMS_SIZE", "TILE_OUTPUTS", "sum_registers", "sum_vectors"]

COLUMNS = 2
TILE_OUTPUTS = COLUMNS * LANES
DEPTH = 64  # inputs that one tile register holds of each row, and of each output
ROWS = 16  # of a tile register
SUMS_SIZE = 2 * TILE_OUTPUTS  # of one row
COLUMN_BYTES = DEPTH * LANES
STEP = 4  # inputs of one vector
LINE_BYTES = 64  # of a cache
BYTES_AHEAD = 4 * COLUMNS * COLUMN_BYTES

# Tile registers, all of ROWS rows: see `amx.WHOLE`.
SUMS_HIGH, SUMS_LOW, SUMS_HIGH_2, SUMS_LOW_2, INPUTS_HIGH, INPUTS_LOW, OUTPUTS, OUTPUTS_2 = range(8)

INDEX = ir.IntType(64)


@intrinsic
def _add_step(typing, tile, codes, place, high, low, first, stride):
    """The tile plus STEP inputs' products. Its vectors are int32, in the order of the sums.

    `place` counts bytes to the first column's codes; rows of inputs begin at `first` and are `stride` apart.
    """
    num_rows = tile.rows // (2 * COLUMNS)

    def codegen(context, builder, signature, arguments):
        value, codes_data, start, high_data, low_data, row, step = arguments
        vectors = []
        for column in range(COLUMNS):
            offset = builder.add(start, ir.Constant(INDEX, column * COLUMN_BYTES))
            address = lowering.address(context, builder, codes_data, codes, offset)
            vectors.append(builder.load(builder.bitcast(address, lowering.INTS.as_pointer()), align=1))
        for index in range(num_rows):
            for part, (data, kind) in enumerate(((high_data, high), (low_data, low))):
                address = lowering.address(context, builder, data, kind, row)
                word = builder.load(builder.bitcast(address, lowering.INT32.as_pointer()), align=1)
                four = lowering.splat(builder, word, lowering.INTS)
                for column, vector in enumerate(vectors):
                    number = (index * 2 + part) * COLUMNS + column
                    sums = builder.bitcast(builder.extract_value(value, number), lowering.INTS)
                    sums = dot_bytes(builder, sums, vector, four, has_vnni=HAS_VNNI)
                    value = builder.insert_value(value, builder.bitcast(sums, lowering.FLOATS), number)
            row = builder.add(row, step)
        return value

    return tile(tile, codes, types.intp, high, low, types.intp, types.intp), codegen


@intrinsic
def _store_sums(typing, tile, sums, offset):
    """All vectors of the tile, one after the other."""

    def codegen(context, builder, signature, arguments):
        for number in range(tile.rows):
            place = builder.add(arguments[2], ir.Constant(INDEX, number * LANES))
            address = lowering.address(context, builder, arguments[1], sums, place)
            builder.store(
                builder.extract_value(arguments[0], number),
                builder.bitcast(address, lowering.FLOATS.as_pointer()),
                align=4,
            )
        return context.get_dummy_value()

    return types.none(tile, sums, types.intp), codegen


def _sum_few(rows: int) -> Any:
    """Compile the sums of `rows` rows."""
    num_vectors = rows * 2 * COLUMNS

    @leaf
    def sum_rows(codes, start, high, low, row, num_inputs, sums, place):
        tile = zero_tile(num_vectors)
        first = row * num_inputs
        for block in range(num_inputs // DEPTH):
            for step in range(DEPTH // STEP):
                vector = start + block * COLUMNS * COLUMN_BYTES + step * STEP * LANES
                tile = _add_step(
                    tile, codes, vector, high, low, first + block * DEPTH + step * STEP, num_inputs
                )
        _store_sums(tile, sums, place)

    return sum_rows


_sum_1, _sum_2, _sum_4 = _sum_few(1), _sum_few(2), _sum_few(4)


@leaf
def sum_vectors(codes, start, high, low, row, num_rows, num_inputs, sums):
    """Sums of `num_rows` rows from `row` on; `start` is where the codes of the tile begin."""
    done = 0
    while num_rows - done >= 4:
        _sum_4(codes, start, high, low, row + done, num_inputs, sums, done * SUMS_SIZE)
        done += 4
    if num_rows - done >= 2:
        _sum_2(codes, start, high, low, row + done, num_inputs, sums, done * SUMS_SIZE)
        done += 2
    if num_rows - done == 1:
        _sum_1(codes, start, high, low, row + done, num_inputs, sums, done * SUMS_SIZE)


@leaf
def sum_registers(codes, start, high, low, row, num_inputs, is_first, sums):
    """Sums of ROWS rows from `row` on; there is memory for so many. Registers are `amx.WHOLE`.

    `is_first`: these are the first rows that meet this tile, whose codes then come from far away. Registers
    wait for each line that they load, so memory is asked early: for the tile that follows too, in the end.
    """
    clear(SUMS_HIGH)
    clear(SUMS_LOW)
    clear(SUMS_HIGH_2)
    clear(SUMS_LOW_2)
    for block in range(num_inputs // DEPTH):
        place, first = start + block * COLUMNS * COLUMN_BYTES, row * num_inputs + block * DEPTH
        if is_first:
            for line in range(0, COLUMNS * COLUMN_BYTES, LINE_BYTES):
                prefetch(codes, place + BYTES_AHEAD + line)
        load(OUTPUTS, codes, place, STEP * LANES)
        load(INPUTS_HIGH, high, first, num_inputs)
        add_byte_products(SUMS_HIGH, INPUTS_HIGH, OUTPUTS)
        load(INPUTS_LOW, low, first, num_inputs)
        add_byte_products(SUMS_LOW, INPUTS_LOW, OUTPUTS)
        load(OUTPUTS_2, codes, place + COLUMN_BYTES, STEP * LANES)
        add_byte_products(SUMS_HIGH_2, INPUTS_HIGH, OUTPUTS_2)
        add_byte_products(SUMS_LOW_2, INPUTS_LOW, OUTPUTS_2)
    width = 4 * SUMS_SIZE  # bytes
    store(SUMS_HIGH, sums, 0, width)
    store(SUMS_HIGH_2, sums, LANES, width)
    store(SUMS_LOW, sums, 2 * LANES, width)
    store(SUMS_LOW_2, sums, 3 * LANES, width)
