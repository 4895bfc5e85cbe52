"""Attention of one task for one key head, and the joining of a tile's parts, for compiled functions.

`attention_plan` cuts the work. `attend` leaves the maxima, sums and unnormalized outputs of its rows in
`partials`; `join` brings the parts of a tile together, in their order. Exponentials are powers of two, and so
maxima are those of scores times log2(e). What a row comes to depends on its query, its context and the way
alone, never on the rows beside it or the task that it is in. The ways are in `attention_ways`.

In bfloat16 weights are rounded, and their sum is that of what they were rounded to.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.attention_ahead import AHEAD_SIZE
from kernels.cpu.attention_columns import (
    SCORE_STRIDE,
    WEIGHT_STRIDE,
    score,
    score_dots,
    weigh,
    weigh_dots,
)
from kernels.cpu.attention_registers import MAX_ROWS, score_registers, weigh_registers
from kernels.cpu.exponentials import exp2, exp2_rough
from kernels.cpu.leaf import leaf
from kernels.cpu.one_of import one_of
from kernels.cpu.pairs import column_width, copy_lanes, store_weights
from kernels.cpu.vectors import (
    LANES,
    broadcast,
    first_lane,
    larger,
    largest,
    load,
    load_scalar,
    mask_from,
    multiply_add,
    store,
    store_scalar,
    total,
)
from kernels.partitions import PARTITION_TOKENS

__all__ = ["Workspace", "attend", "join", "make_workspace"]

MAX_RUNS = PARTITION_TOKENS // LANES
LOG2_E = 1 / math.log(2)

_score = one_of(score, score_dots, score_registers)  # by way
_weigh = one_of(weigh, weigh_dots, weigh_registers)


class Workspace(NamedTuple):
    """What each worker computes in: the first dimension is the worker. Types are the pool's unless said."""

    queries: npt.NDArray[np.generic]  # [num_workers, MAX_ROWS * head_dim]
    scores: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS * SCORE_STRIDE]
    weights: npt.NDArray[np.generic]  # [num_workers, MAX_ROWS * WEIGHT_STRIDE]
    products: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS * head_dim]
    last_run: npt.NDArray[np.generic]  # [num_workers, LANES * head_dim]
    places: npt.NDArray[np.int64]  # [num_workers, 2 * MAX_RUNS]
    ahead: npt.NDArray[np.int64]  # [num_workers, AHEAD_SIZE], zeros at first


def make_workspace(num_workers: int, head_dim: int, dtype: torch.dtype) -> Workspace:
    """Fresh arrays that begin with a cache line. `dtype` is the pool's."""

    def fresh(size: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(num_workers, size, dtype=kind)

    return Workspace(
        as_array(fresh(MAX_ROWS * head_dim)),
        as_array(fresh(MAX_ROWS * SCORE_STRIDE, torch.float32)),
        as_array(fresh(MAX_ROWS * WEIGHT_STRIDE)),
        as_array(fresh(MAX_ROWS * head_dim, torch.float32)),
        as_array(fresh(LANES * head_dim)),
        fresh(2 * MAX_RUNS, torch.int64).numpy(),
        np.zeros((num_workers, AHEAD_SIZE), np.int64),
    )


@leaf
def attend(task, head, members, query, keys, values, block_tables, scale, way, worker, work, partials):
    """A task for one key head, in a worker's part of the workspace.

    `query`, `keys` and `values` are of one type; `partials` are float32 outputs [num_rows, head_dim], maxima
    and sums [num_rows]. The way REGISTERS asks for `amx.configure` before.
    """
    outs, maxima, sums = partials
    num_kv_heads, head_dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    group = query.shape[1] // num_kv_heads
    factor = np.float32(scale * LOG2_E)
    num_runs = -(-task.num_seen // LANES)
    key_places, value_places = work.places[worker, :MAX_RUNS], work.places[worker, MAX_RUNS:]
    _find_runs(task, head, num_runs, block_tables, keys, key_places, value_places)
    _mend_last_run(task.num_seen, num_runs, head_dim, values, value_places, work.last_run[worker])
    queries, scores, weights = work.queries[worker], work.scores[worker], work.weights[worker]
    products, first_row = work.products[worker], task.row + head * task.num_rows
    ahead = work.ahead[worker]
    for start in range(0, task.num_rows, MAX_ROWS):
        num_rows = min(MAX_ROWS, task.num_rows - start)
        _gather_queries(task, head, members, start, num_rows, group, query, queries)
        _score(way, queries, num_rows, head_dim, 0, num_runs, keys, key_places, block_size, ahead, scores)
        for row in range(num_rows):
            num_visible = members[task.first_member + (start + row) // group].num_visible
            place = first_row + start + row
            maxima[place], sums[place] = _softmax_row(scores, weights, row, factor, num_visible, num_runs)
        _weigh(way, weights, num_rows, head_dim, 0, num_runs, values, value_places, 0, ahead, products)
        for row in range(num_rows):
            _copy_row(products, row * head_dim, outs, first_row + start + row, head_dim)


@leaf
def _gather_queries(task, head, members, start, num_rows, group, query, queries):
    """Some of a task's rows, from row `start` on, side by side."""
    num_heads, head_dim = query.shape[1], query.shape[2]
    for row in range(num_rows):
        token = members[task.first_member + (start + row) // group].token
        query_head = head * group + (start + row) % group
        _copy_row(query, (token * num_heads + query_head) * head_dim, queries, row, head_dim)


@leaf
def _copy_row(source, offset, target, row, head_dim):
    for chunk in range(0, head_dim, LANES):
        dim = min(chunk, head_dim - LANES)
        copy_lanes(source, offset + dim, target, row * head_dim + dim)


@leaf
def _find_runs(task, head, num_runs, block_tables, keys, key_places, value_places):
    """Where each run's keys and values begin in the pool."""
    _, num_kv_heads, head_dim, block_size = keys.shape
    first = task.segment * PARTITION_TOKENS
    for run in range(num_runs):
        token = first + run * LANES
        block = np.int64(block_tables[task.sequence, token // block_size])
        base = (block * num_kv_heads + head) * head_dim * block_size
        slot = token % block_size
        key_places[run] = base + slot * column_width(keys)
        value_places[run] = base + slot * head_dim


@leaf
def _mend_last_run(num_seen, num_runs, head_dim, values, value_places, last_run):
    """Read a run that is not seen whole from a copy, where what nobody sees is zero.

    Slots that were never written may hold NaN, and a weight of zero does not help against that.
    """
    num_left = num_seen - (num_runs - 1) * LANES
    if num_left == LANES:
        return
    width, start = column_width(values), value_places[num_runs - 1]
    num_whole = num_left // width * width * head_dim
    for element in range(0, num_whole, LANES):
        copy_lanes(values, start + element, last_run, element)
    for element in range(num_whole, LANES * head_dim):
        is_seen = element < num_whole + width * head_dim and element % width < num_left % width
        seen = load_scalar(values, start + element) if is_seen else np.float32(0)
        store_scalar(last_run, element, seen)
    # Places count elements from the pool's first one, wherever the copy lies.
    value_places[num_runs - 1] = (last_run.ctypes.data - values.ctypes.data) // values.itemsize


@leaf
def _softmax_row(scores, weights, row, factor, num_visible, num_runs):
    """A row's weights, zero from num_visible on. Returns the maximum, in powers of two, and their sum."""
    start, target, end = row * SCORE_STRIDE, row * WEIGHT_STRIDE, num_runs * LANES
    highest = other_highest = broadcast(np.float32(-np.inf))
    for token in range(0, num_visible, 2 * LANES):
        score, other = _load_two(scores, start, token, num_visible)
        highest, other_highest = larger(highest, score), larger(other_highest, other)
    top = largest(larger(highest, other_highest)) * factor
    scale, shift = broadcast(factor), broadcast(-top)
    weight_sum = broadcast(np.float32(0))
    for token in range(0, num_visible, 2 * LANES):
        score, other = _load_two(scores, start, token, num_visible)
        weight = _exponential(multiply_add(score, scale, shift), weights)
        other_weight = _exponential(multiply_add(other, scale, shift), weights)
        weight_sum = store_weights(weights, target + token, weight, other_weight, weight_sum)
    first_hidden = -(-max(num_visible, 0) // (2 * LANES)) * 2 * LANES
    for token in range(first_hidden, end, LANES):
        store(weights, target + token, broadcast(np.float32(0)))
    return top, total(weight_sum)


@leaf
def _load_two(scores, start, token, num_visible):
    """Two vectors of scores; minus infinity in place of what is not visible."""
    score, other = load(scores, start + token), load(scores, start + token + LANES)
    num_left = num_visible - token
    if num_left < 2 * LANES:
        return mask_from(score, num_left), mask_from(other, num_left - LANES)
    return score, other


@leaf
def _exponential(x, weights):
    """2 ** x as exactly as the weights can hold it."""
    return exp2(x) if column_width(weights) == 1 else exp2_rough(x)


@leaf
def join(tile, head, parts, partials, group, out):
    """A tile's parts, in their order, into its rows of `out`: [num_tokens, num_heads, head_dim].

    The maxima are spent: they become the parts' shares.
    """
    outs, maxima, sums = partials
    num_heads, head_dim = out.shape[1], out.shape[2]
    for row in range(tile.num_tokens * group):
        _find_shares(tile, head, parts, row, maxima, sums)
        start = ((tile.first_token + row // group) * num_heads + head * group + row % group) * head_dim
        for chunk in range(0, head_dim, LANES):
            dim = min(chunk, head_dim - LANES)
            joined = broadcast(np.float32(0))
            for index in range(tile.first_part, tile.first_part + tile.num_parts):
                place = parts[index].row + head * parts[index].row_stride + row
                joined = multiply_add(load(outs, place * head_dim + dim), broadcast(maxima[place]), joined)
            store(out, start + dim, joined)


@leaf
def _find_shares(tile, head, parts, row, maxima, sums):
    """Turn the maxima of a row's parts into what their outputs are multiplied by."""
    top = np.float32(-np.inf)
    for index in range(tile.first_part, tile.first_part + tile.num_parts):
        top = max(top, maxima[parts[index].row + head * parts[index].row_stride + row])
    weight_sum = np.float32(0)
    for index in range(tile.first_part, tile.first_part + tile.num_parts):
        place = parts[index].row + head * parts[index].row_stride + row
        maxima[place] = first_lane(exp2(broadcast(maxima[place] - top)))
        weight_sum += maxima[place] * sums[place]
    for index in range(tile.first_part, tile.first_part + tile.num_parts):
        maxima[parts[index].row + head * parts[index].row_stride + row] /= weight_sum
