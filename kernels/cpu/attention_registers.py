"""Attention's two products on AMX's tile registers, in bfloat16: see `amx`.

As `attention_columns`, whose shapes and strides these are; up to MAX_ROWS rows, where `left` and `out` have
room for the whole of them. Rows past the last are computed from whatever lies there, and say nothing. One
row's sums run over dimensions or tokens in the same order, whatever rows are beside it.
"""

from kernels.cpu.amx import (
    LEFT,
    MORE_SUMS,
    OTHER,
    OTHER_LEFT,
    OTHER_RIGHT,
    RIGHT,
    SUMS,
    WIDE,
    add_bfloat_products,
    clear,
    load,
    store,
)
from kernels.cpu.attention_ahead import ask
from kernels.cpu.attention_columns import SCORE_STRIDE, WEIGHT_STRIDE
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import LANES

__all__ = ["MAX_ROWS", "score_registers", "weigh_registers"]

TILE_ROWS = 16
MAX_ROWS = 2 * TILE_ROWS
WIDE_DIMS = 2 * LANES  # of a query, in a register of 64 bytes a row
BFLOAT, FLOAT, PAIR = 2, 4, 4  # bytes


@leaf
def score_registers(queries, num_rows, head_dim, first, end, keys, places, block_size, ahead, scores):
    """Scores of runs of tokens. `head_dim` is a multiple of LANES."""
    if num_rows > TILE_ROWS:
        for run in range(first, end):
            ask(ahead)
            _score_two(queries, head_dim, keys, places[run], block_size, scores, run * LANES)
    else:
        for run in range(first, end):
            ask(ahead)
            _score_one(queries, head_dim, keys, places[run], block_size, scores, run * LANES)


@leaf
def _score_one(queries, head_dim, keys, place, block_size, scores, column):
    whole = head_dim // WIDE_DIMS * WIDE_DIMS
    clear(SUMS)
    for dim in range(0, whole, WIDE_DIMS):
        load(OTHER, keys, place + dim * block_size, block_size * PAIR)
        load(WIDE, queries, dim, head_dim * BFLOAT)
        add_bfloat_products(SUMS, WIDE, OTHER)
    if whole < head_dim:
        load(RIGHT, keys, place + whole * block_size, block_size * PAIR)
        load(LEFT, queries, whole, head_dim * BFLOAT)
        add_bfloat_products(SUMS, LEFT, RIGHT)
    store(SUMS, scores, column, SCORE_STRIDE * FLOAT)


@leaf
def _score_two(queries, head_dim, keys, place, block_size, scores, column):
    whole, more = head_dim // WIDE_DIMS * WIDE_DIMS, TILE_ROWS * head_dim
    clear(SUMS)
    clear(MORE_SUMS)
    for dim in range(0, whole, WIDE_DIMS):
        load(OTHER, keys, place + dim * block_size, block_size * PAIR)
        load(WIDE, queries, dim, head_dim * BFLOAT)
        add_bfloat_products(SUMS, WIDE, OTHER)
        load(WIDE, queries, more + dim, head_dim * BFLOAT)
        add_bfloat_products(MORE_SUMS, WIDE, OTHER)
    if whole < head_dim:
        load(RIGHT, keys, place + whole * block_size, block_size * PAIR)
        load(LEFT, queries, whole, head_dim * BFLOAT)
        add_bfloat_products(SUMS, LEFT, RIGHT)
        load(OTHER_LEFT, queries, more + whole, head_dim * BFLOAT)
        add_bfloat_products(MORE_SUMS, OTHER_LEFT, RIGHT)
    store(SUMS, scores, column, SCORE_STRIDE * FLOAT)
    store(MORE_SUMS, scores, TILE_ROWS * SCORE_STRIDE + column, SCORE_STRIDE * FLOAT)


@leaf
def weigh_registers(weights, num_rows, head_dim, first, end, values, places, _, ahead, out):
    """Sums of the runs' values. `head_dim` is a multiple of LANES."""
    for chunk in range(0, head_dim, 2 * LANES):
        dim = min(chunk, max(head_dim - 2 * LANES, 0))  # chunks may overlap, and agree where they do
        other = min(dim + LANES, head_dim - LANES)
        if num_rows > TILE_ROWS:
            _weigh_two(weights, head_dim, first, end, values, places, dim, other, ahead, out)
        else:
            _weigh_one(weights, head_dim, first, end, values, places, dim, other, ahead, out)


@leaf
def _weigh_one(weights, head_dim, first, end, values, places, dim, other, ahead, out):
    clear(SUMS)
    clear(MORE_SUMS)
    for run in range(first, end):
        ask(ahead)
        load(LEFT, weights, run * LANES, WEIGHT_STRIDE * BFLOAT)
        load(RIGHT, values, places[run] + 2 * dim, head_dim * PAIR)
        add_bfloat_products(SUMS, LEFT, RIGHT)
        load(OTHER_RIGHT, values, places[run] + 2 * other, head_dim * PAIR)
        add_bfloat_products(MORE_SUMS, LEFT, OTHER_RIGHT)
    store(SUMS, out, dim, head_dim * FLOAT)
    store(MORE_SUMS, out, other, head_dim * FLOAT)


@leaf
def _weigh_two(weights, head_dim, first, end, values, places, dim, other, ahead, out):
    clear(SUMS)
    clear(MORE_SUMS)
    clear(WIDE)  # here two more registers of sums
    clear(OTHER)
    for run in range(first, end):
        ask(ahead)
        load(LEFT, weights, run * LANES, WEIGHT_STRIDE * BFLOAT)
        load(OTHER_LEFT, weights, TILE_ROWS * WEIGHT_STRIDE + run * LANES, WEIGHT_STRIDE * BFLOAT)
        load(RIGHT, values, places[run] + 2 * dim, head_dim * PAIR)
        add_bfloat_products(SUMS, LEFT, RIGHT)
        add_bfloat_products(WIDE, OTHER_LEFT, RIGHT)
        load(OTHER_RIGHT, values, places[run] + 2 * other, head_dim * PAIR)
        add_bfloat_products(MORE_SUMS, LEFT, OTHER_RIGHT)
        add_bfloat_products(OTHER, OTHER_LEFT, OTHER_RIGHT)
    more = TILE_ROWS * head_dim
    store(SUMS, out, dim, head_dim * FLOAT)
    store(MORE_SUMS, out, other, head_dim * FLOAT)
    store(WIDE, out, more + dim, head_dim * FLOAT)
    store(OTHER, out, more + other, head_dim * FLOAT)
