"""Attention of ragged spans over paged keys and values, compiled for the CPU.

The work is cut into tasks of query tokens, often of several sequences, x the query heads of one key head x
PARTITION_TOKENS of context, so that a key or value that was loaded and widened serves many rows: see
`attention_plan`. A task leaves its rows' maxima, sums and unnormalized outputs; a second pass joins the
segments of each row in their order. Where a row's segments begin and in which order anything is added depends
on positions alone, never on the rest of the batch.
"""

import math
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.attention_plan import plan
from kernels.cpu.parallel import take_turn
from kernels.cpu.tiles import accumulate, store_tile, zero_tile
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    exp,
    largest,
    load,
    mask_from,
    maximum,
    multiply,
    multiply_add,
    store,
    subtract,
    total,
)
from kernels.partitions import PARTITION_TOKENS

__all__ = ["paged_attention"]


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    leaders: torch.Tensor,  # [num_sequences, num_partitions] int32
    scale: float,
) -> torch.Tensor:  # as query
    """The operation that `kernels.paged_attention` defines."""
    _check_shape(keys.shape[2], keys.shape[3])
    out = torch.empty_like(query)
    _paged_attention(
        as_array(query),
        as_array(keys),
        as_array(values),
        block_tables.numpy(),
        context_lens.numpy(),
        cu_seqlens_q.numpy(),
        leaders.numpy(),
        np.float32(scale),
        numba.get_num_threads(),
        as_array(out),
    )
    return out


def _check_shape(head_dim: int, block_size: int) -> None:
    if block_size % LANES or PARTITION_TOKENS % block_size:
        raise ValueError(
            f"blocks of {block_size} tokens: on a CPU the block size is a multiple of {LANES} that divides "
            f"{PARTITION_TOKENS}"
        )
    if head_dim < LANES:
        raise ValueError(f"heads of {head_dim} dimensions: on a CPU a head has at least {LANES}")


# Products are computed in tiles of some rows x two vectors, so that enough sums run beside each other to hide
# how long one addition takes, and each number that is loaded serves twice.


def _score_rows(rows: int) -> Any:
    """Compile the scores of `rows` query rows against a segment's tokens."""

    @numba.njit
    def score(query, row, head_dim, num_tokens, keys, offsets, block_size, scores):
        last = (num_tokens - 1) // LANES * LANES
        for token in range(0, num_tokens, 2 * LANES):
            other = min(token + LANES, last)  # may be the same once more, and agrees with itself
            key_place = offsets[token // block_size] + token % block_size
            other_place = offsets[other // block_size] + other % block_size
            tile, other_tile = zero_tile(rows), zero_tile(rows)
            for dim in range(head_dim):
                key = load(keys, key_place + dim * block_size)
                other_key = load(keys, other_place + dim * block_size)
                tile = accumulate(tile, query, row * head_dim + dim, head_dim, key)
                other_tile = accumulate(other_tile, query, row * head_dim + dim, head_dim, other_key)
            store_tile(tile, scores, row * PARTITION_TOKENS + token, PARTITION_TOKENS)
            store_tile(other_tile, scores, row * PARTITION_TOKENS + other, PARTITION_TOKENS)

    return score


def _weigh_rows(rows: int) -> Any:
    """Compile the sum of a segment's values, weighted by `rows` rows of scores."""

    @numba.njit
    def weigh(scores, row, head_dim, num_tokens, values, offsets, block_size, out):
        for chunk in range(0, head_dim, 2 * LANES):
            dim = min(chunk, head_dim - LANES)  # chunks may overlap, and agree where they do
            other = min(chunk + LANES, head_dim - LANES)
            tile, other_tile = zero_tile(rows), zero_tile(rows)
            for token in range(0, num_tokens, block_size):
                offset = offsets[token // block_size]
                column = row * PARTITION_TOKENS + token
                for slot in range(min(block_size, num_tokens - token)):
                    value = load(values, offset + slot * head_dim + dim)
                    other_value = load(values, offset + slot * head_dim + other)
                    tile = accumulate(tile, scores, column + slot, PARTITION_TOKENS, value)
                    other_tile = accumulate(other_tile, scores, column + slot, PARTITION_TOKENS, other_value)
            store_tile(tile, out, row * head_dim + dim, head_dim)
            store_tile(other_tile, out, row * head_dim + other, head_dim)

    return weigh


def _in_tiles(compile_rows: Any) -> Any:
    """Compile a product for any number of rows from those of a few."""
    rows_1, rows_2, rows_3, rows_4, rows_6, rows_8 = [compile_rows(rows) for rows in (1, 2, 3, 4, 6, 8)]

    @numba.njit
    def product(left, num_rows, head_dim, num_tokens, right, offsets, block_size, out):
        row = 0
        while row < num_rows:
            rest = num_rows - row
            if rest >= 8:
                rows_8(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 8
            elif rest >= 6:
                rows_6(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 6
            elif rest >= 4:
                rows_4(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 4
            elif rest == 3:
                rows_3(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 3
            elif rest == 2:
                rows_2(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 2
            else:
                rows_1(left, row, head_dim, num_tokens, right, offsets, block_size, out)
                row += 1

    return product


_score, _weigh = _in_tiles(_score_rows), _in_tiles(_weigh_rows)


@numba.njit
def _softmax_row(scores, start, num_visible, num_tokens):
    """Scores to weights exp(score - maximum), zero from num_visible on. Returns the maximum and the sum."""
    highest, other_highest = broadcast(np.float32(-np.inf)), broadcast(np.float32(-np.inf))
    for token in range(0, num_visible, 2 * LANES):
        other = token + LANES  # still inside the row, which holds an even number of vectors
        highest = maximum(highest, mask_from(load(scores, start + token), num_visible - token))
        other_highest = maximum(other_highest, mask_from(load(scores, start + other), num_visible - other))
    top = largest(maximum(highest, other_highest))
    shift = broadcast(top)
    weight_sum = broadcast(np.float32(0))
    for token in range(0, num_visible, LANES):
        score = mask_from(load(scores, start + token), num_visible - token)
        weight = exp(subtract(score, shift))
        weight_sum = add(weight_sum, weight)
        store(scores, start + token, weight)
    first_hidden = max(num_visible, 0)
    for token in range(-(-first_hidden // LANES) * LANES, num_tokens, LANES):
        store(scores, start + token, broadcast(np.float32(0)))
    return top, total(weight_sum)


@numba.njit
def _gather_rows(task, head, query, scale, tiles, parts, group, rows):
    """A task's scaled queries, part by part; of a part token by token."""
    row, place, head_dim = 0, task.first_part, query.shape[2]
    factor = broadcast(scale)
    while place >= 0:
        tile = tiles[parts[place].tile]
        for token in range(tile.first_token, tile.first_token + tile.num_tokens):
            start = (token * query.shape[1] + head * group) * head_dim
            for chunk in range(0, group * head_dim, LANES):
                element = min(chunk, group * head_dim - LANES)
                store(rows, row * head_dim + element, multiply(load(query, start + element), factor))
            row += group
        place = parts[place].next_part


@numba.njit
def _weigh_scores(task, num_seen, tiles, parts, group, scores, maxima, sums):
    """Each row's scores to weights, as far as its token may look."""
    row, place = 0, task.first_part
    while place >= 0:
        tile = tiles[parts[place].tile]
        for token in range(tile.num_tokens):
            num_visible = min(tile.position + token + 1 - task.segment * PARTITION_TOKENS, num_seen)
            for _ in range(group):
                maxima[row], sums[row] = _softmax_row(scores, row * PARTITION_TOKENS, num_visible, num_seen)
                row += 1
        place = parts[place].next_part


@numba.njit
def _attend(task, head, query, keys, values, block_tables, scale, tiles, parts, outs, maxima, sums):
    """One task for one key head: its rows' unnormalized outputs, maxima and sums."""
    num_kv_heads, head_dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    group = query.shape[1] // num_kv_heads
    first = parts[task.first_part]
    tile = tiles[first.tile]
    num_rows = task.num_rows
    start = task.segment * PARTITION_TOKENS
    num_seen = min(tile.position + tile.num_tokens - start, PARTITION_TOKENS)

    rows = np.empty((num_rows, head_dim), np.float32)
    _gather_rows(task, head, query, scale, tiles, parts, group, rows)
    scores = np.empty((num_rows, PARTITION_TOKENS), np.float32)
    offsets = np.empty(PARTITION_TOKENS // block_size, np.int64)
    for token in range(0, num_seen, block_size):
        block = np.int64(block_tables[tile.sequence, (start + token) // block_size])
        offsets[token // block_size] = (block * num_kv_heads + head) * head_dim * block_size
    _score(rows, num_rows, head_dim, num_seen, keys, offsets, block_size, scores)
    row = first.row + head * num_rows
    end = row + num_rows
    _weigh_scores(task, num_seen, tiles, parts, group, scores, maxima[row:end], sums[row:end])
    _weigh(scores, num_rows, head_dim, num_seen, values, offsets, block_size, outs[row:end])


@numba.njit
def _join(tile, head, parts, outs, maxima, sums, group, out):
    """A tile's parts, in their order, into its rows of the output."""
    num_heads, head_dim = out.shape[1], out.shape[2]
    places = np.empty(tile.num_parts, np.int64)
    weights = np.empty(tile.num_parts, np.float32)
    for row in range(tile.num_tokens * group):
        top = np.float32(-np.inf)
        for index in range(tile.num_parts):
            part = parts[tile.first_part + index]
            places[index] = part.row + head * part.row_stride + row
            top = max(top, maxima[places[index]])
        weight_sum = np.float32(0)
        for index in range(tile.num_parts):
            weights[index] = np.float32(math.exp(maxima[places[index]] - top))
            weight_sum += weights[index] * sums[places[index]]
        start = ((tile.first_token + row // group) * num_heads + head * group + row % group) * head_dim
        for chunk in range(0, head_dim, LANES):
            dim = min(chunk, head_dim - LANES)
            joined = broadcast(np.float32(0))
            for index in range(tile.num_parts):
                output = load(outs, places[index] * head_dim + dim)
                joined = multiply_add(output, broadcast(weights[index]), joined)
            store(out, start + dim, multiply(joined, broadcast(np.float32(1) / weight_sum)))


@numba.njit(parallel=True, cache=True, nogil=True)
def _paged_attention(
    query, keys, values, block_tables, context_lens, cu_seqlens_q, leaders, scale, num_workers, out
):
    num_kv_heads = keys.shape[1]
    group = query.shape[1] // num_kv_heads
    tiles, parts, tasks, num_rows = plan(
        context_lens, cu_seqlens_q, leaders, group, num_kv_heads, num_workers
    )
    outs = np.empty((num_rows, query.shape[2]), np.float32)
    maxima = np.empty(num_rows, np.float32)
    sums = np.empty(num_rows, np.float32)
    # Whoever is free takes the next item: tasks differ in size, and cores are shared with other work.
    taken = np.empty(1, np.int64)
    taken[0] = 0  # np.zeros would be a parallel loop, which costs more than a short step's attention
    for _ in numba.prange(num_workers):
        item = take_turn(taken)
        while item < len(tasks) * num_kv_heads:
            task, head = tasks[item // num_kv_heads], item % num_kv_heads
            _attend(task, head, query, keys, values, block_tables, scale, tiles, parts, outs, maxima, sums)
            item = take_turn(taken)
    for worker in numba.prange(num_workers):
        for item in range(worker, len(tiles) * num_kv_heads, num_workers):
            _join(tiles[item // num_kv_heads], item % num_kv_heads, parts, outs, maxima, sums, group, out)
