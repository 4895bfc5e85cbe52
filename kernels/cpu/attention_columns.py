"""Attention's two products on vector registers: scores of keys, and sums of values by weight.

Both are computed in tiles of some rows x two columns, so that enough sums run beside each other to hide how
long one addition takes, and each number that is loaded serves twice. A sum runs over dimensions, or over
tokens, one after the other, whatever rows are beside it.

A segment's tokens are cut into runs of LANES, which lie in one block each. `key_places` and `value_places`
say where a run's first element is. Queries lie head_dim elements apart, scores SCORE_STRIDE, weights
WEIGHT_STRIDE. A segment's arrays have room for a whole number of runs.
"""

from typing import Any

from kernels.cpu.attention_ahead import ask
from kernels.cpu.leaf import leaf
from kernels.cpu.pairs import column_width, load_column
from kernels.cpu.tiles import accumulate, accumulate_dots, store_tile, zero_tile
from kernels.cpu.vectors import LANES
from kernels.partitions import PARTITION_TOKENS

__all__ = ["SCORE_STRIDE", "WEIGHT_STRIDE", "score", "score_dots", "weigh", "weigh_dots"]

# Were rows a power of two apart, a column of them would share a few sets of the nearest cache.
SCORE_STRIDE = PARTITION_TOKENS + LANES
WEIGHT_STRIDE = PARTITION_TOKENS + 2 * LANES


def _score_rows(rows: int, add: Any) -> Any:
    """Compile the scores of `rows` query rows against some runs of tokens."""

    @leaf
    def score_rows(queries, row, head_dim, first, end, keys, places, block_size, ahead, scores):
        width = column_width(keys)
        for run in range(first, end, 2):
            other = min(run + 1, end - 1)  # may be the same once more, and agrees with itself
            place, other_place = places[run], places[other]
            ask(ahead)
            ask(ahead)
            tile, other_tile = zero_tile(rows), zero_tile(rows)
            for dim in range(0, head_dim, width):
                key = load_column(keys, place + dim * block_size)
                other_key = load_column(keys, other_place + dim * block_size)
                tile = add(tile, queries, row * head_dim + dim, head_dim, key)
                other_tile = add(other_tile, queries, row * head_dim + dim, head_dim, other_key)
            store_tile(tile, scores, row * SCORE_STRIDE + run * LANES, SCORE_STRIDE)
            store_tile(other_tile, scores, row * SCORE_STRIDE + other * LANES, SCORE_STRIDE)

    return score_rows


def _weigh_rows(rows: int, add: Any) -> Any:
    """Compile the sum of the runs' values, weighted by `rows` rows of weights."""

    @leaf
    def weigh_rows(weights, row, head_dim, first, end, values, places, _, ahead, out):
        width = column_width(values)
        for chunk in range(0, head_dim, 2 * LANES):
            dim = min(chunk, head_dim - LANES)  # chunks may overlap, and agree where they do
            other = min(chunk + LANES, head_dim - LANES)
            tile, other_tile = zero_tile(rows), zero_tile(rows)
            for run in range(first, end):
                ask(ahead)
                column = row * WEIGHT_STRIDE + run * LANES
                for slot in range(0, LANES, width):
                    place = places[run] + slot * head_dim
                    value = load_column(values, place + dim * width)
                    other_value = load_column(values, place + other * width)
                    tile = add(tile, weights, column + slot, WEIGHT_STRIDE, value)
                    other_tile = add(other_tile, weights, column + slot, WEIGHT_STRIDE, other_value)
            store_tile(tile, out, row * head_dim + dim, head_dim)
            store_tile(other_tile, out, row * head_dim + other, head_dim)

    return weigh_rows


def _in_tiles(compile_rows: Any, add: Any) -> Any:
    """Compile a product for any number of rows from those of a few."""
    rows_1, rows_2, rows_3, rows_4, rows_6, rows_8 = [compile_rows(rows, add) for rows in (1, 2, 3, 4, 6, 8)]

    @leaf
    def product(left, num_rows, head_dim, first, end, right, places, block_size, ahead, out):
        row = 0
        while row < num_rows:
            rest = num_rows - row
            if rest >= 8:
                rows_8(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 8
            elif rest >= 6:
                rows_6(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 6
            elif rest >= 4:
                rows_4(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 4
            elif rest == 3:
                rows_3(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 3
            elif rest == 2:
                rows_2(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 2
            else:
                rows_1(left, row, head_dim, first, end, right, places, block_size, ahead, out)
                row += 1

    return product


# (left, num_rows, head_dim, first run, end run, right, places, block_size, ahead, out): `left` are queries or
# weights, `right` keys or values, of the same type; `out` is float32.
score, weigh = _in_tiles(_score_rows, accumulate), _in_tiles(_weigh_rows, accumulate)
score_dots, weigh_dots = _in_tiles(_score_rows, accumulate_dots), _in_tiles(_weigh_rows, accumulate_dots)
