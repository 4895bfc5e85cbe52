"""Attention of ragged spans over paged keys and values, compiled for the CPU.

The work is cut into tasks of at most TILE_TOKENS query tokens x the query heads of one key head x
SEGMENT_TOKENS of context, so that a key or value that was loaded and widened serves many rows. A task
leaves its rows' maxima, sums and unnormalized outputs; a second pass joins the segments of each row in
their order. Where a row's segments begin and in which order anything is added depends on positions alone,
never on the rest of the batch.
"""

import math
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.tiles import accumulate, store_tile, zero_tile
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    exp,
    largest,
    load,
    load_scalar,
    mask_from,
    maximum,
    multiply,
    multiply_add,
    store,
    subtract,
    total,
)

__all__ = ["paged_attention"]

TILE_TOKENS = 8
SEGMENT_TOKENS = 256


def paged_attention(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
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
        np.float32(scale),
        numba.get_num_threads(),
        as_array(out),
    )
    return out


def _check_shape(head_dim: int, block_size: int) -> None:
    if block_size % LANES or SEGMENT_TOKENS % block_size:
        raise ValueError(
            f"blocks of {block_size} tokens: on a CPU the block size is a multiple of {LANES} that divides "
            f"{SEGMENT_TOKENS}"
        )
    if head_dim < LANES:
        raise ValueError(f"heads of {head_dim} dimensions: on a CPU a head has at least {LANES}")


@numba.njit
def _plan(context_lens, cu_seqlens_q):
    """One row a task: sequence, first query token, number of query tokens, position of the first, segment."""
    num_tasks = 0
    for sequence in range(len(context_lens)):
        start, end = cu_seqlens_q[sequence], cu_seqlens_q[sequence + 1]
        for token in range(start, end, TILE_TOKENS):
            last = context_lens[sequence] - end + min(token + TILE_TOKENS, end)
            num_tasks += (last + SEGMENT_TOKENS - 1) // SEGMENT_TOKENS
    tasks = np.empty((num_tasks, 5), np.int64)
    task = 0
    for sequence in range(len(context_lens)):
        start, end = cu_seqlens_q[sequence], cu_seqlens_q[sequence + 1]
        for token in range(start, end, TILE_TOKENS):
            position = context_lens[sequence] - end + token
            count = min(TILE_TOKENS, end - token)
            for segment in range((position + count + SEGMENT_TOKENS - 1) // SEGMENT_TOKENS):
                tasks[task, 0] = sequence
                tasks[task, 1] = token
                tasks[task, 2] = count
                tasks[task, 3] = position
                tasks[task, 4] = segment
                task += 1
    return tasks


def _score_rows(rows: int) -> Any:
    """Compile the scores of `rows` query rows against one block's tokens."""

    @numba.njit
    def score(query, row, keys, key_offset, head_dim, block_size, scores, column):
        for lane in range(0, block_size, LANES):
            tile = zero_tile(rows)
            for dim in range(head_dim):
                key = load(keys, key_offset + dim * block_size + lane)
                tile = accumulate(tile, query, row * head_dim + dim, head_dim, key)
            store_tile(tile, scores, row * SEGMENT_TOKENS + column + lane, SEGMENT_TOKENS)

    return score


def _weigh_rows(rows: int) -> Any:
    """Compile the sum of a segment's values, weighted by `rows` rows of scores."""

    @numba.njit
    def weigh(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out):
        for chunk in range(0, head_dim, LANES):
            dim = min(chunk, head_dim - LANES)  # the last chunk may overlap its neighbour, and agrees with it
            tile = zero_tile(rows)
            for token in range(0, num_tokens, block_size):
                offset = value_offsets[token // block_size] + dim
                column = row * SEGMENT_TOKENS + token
                for slot in range(min(block_size, num_tokens - token)):
                    value = load(values, offset + slot * head_dim)
                    tile = accumulate(tile, scores, column + slot, SEGMENT_TOKENS, value)
            store_tile(tile, out, row * head_dim + dim, head_dim)

    return weigh


_score_1, _score_2, _score_3, _score_4, _score_8 = [_score_rows(rows) for rows in (1, 2, 3, 4, 8)]
_weigh_1, _weigh_2, _weigh_3, _weigh_4, _weigh_8 = [_weigh_rows(rows) for rows in (1, 2, 3, 4, 8)]


@numba.njit
def _score(query, num_rows, keys, key_offset, head_dim, block_size, scores, column):
    row = 0
    while num_rows - row >= 8:
        _score_8(query, row, keys, key_offset, head_dim, block_size, scores, column)
        row += 8
    if num_rows - row >= 4:
        _score_4(query, row, keys, key_offset, head_dim, block_size, scores, column)
        row += 4
    if num_rows - row == 3:
        _score_3(query, row, keys, key_offset, head_dim, block_size, scores, column)
    elif num_rows - row == 2:
        _score_2(query, row, keys, key_offset, head_dim, block_size, scores, column)
    elif num_rows - row == 1:
        _score_1(query, row, keys, key_offset, head_dim, block_size, scores, column)


@numba.njit
def _weigh(scores, num_rows, num_tokens, values, value_offsets, block_size, head_dim, out):
    row = 0
    while num_rows - row >= 8:
        _weigh_8(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out)
        row += 8
    if num_rows - row >= 4:
        _weigh_4(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out)
        row += 4
    if num_rows - row == 3:
        _weigh_3(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out)
    elif num_rows - row == 2:
        _weigh_2(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out)
    elif num_rows - row == 1:
        _weigh_1(scores, row, num_tokens, values, value_offsets, block_size, head_dim, out)


@numba.njit
def _softmax_row(scores, start, num_visible, num_tokens):
    """Scores to weights exp(score - maximum), zero from num_visible on. Returns the maximum and the sum."""
    highest = broadcast(np.float32(-np.inf))
    for token in range(0, num_visible, LANES):
        highest = maximum(highest, mask_from(load(scores, start + token), num_visible - token))
    top = largest(highest)
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
def _attend(task, head, query, keys, values, block_tables, scale, out, maxima, sums):
    """One task for one key head; rows of the output are query tokens x the heads of the group."""
    sequence, first_token, num_query, position, segment = task[0], task[1], task[2], task[3], task[4]
    num_kv_heads, head_dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    group = query.shape[1] // num_kv_heads
    num_rows = num_query * group
    segment_start = segment * SEGMENT_TOKENS
    num_tokens = min(position + num_query - segment_start, SEGMENT_TOKENS)

    rows = np.empty((num_rows, head_dim), np.float32)
    for token in range(num_query):
        start = ((first_token + token) * query.shape[1] + head * group) * head_dim
        for element in range(group * head_dim):
            rows[token * group + element // head_dim, element % head_dim] = (
                load_scalar(query, start + element) * scale
            )
    scores = np.empty((num_rows, SEGMENT_TOKENS), np.float32)
    offsets = np.empty(SEGMENT_TOKENS // block_size, np.int64)
    for token in range(0, num_tokens, block_size):
        block = np.int64(block_tables[sequence, (segment_start + token) // block_size])
        offset = (block * num_kv_heads + head) * head_dim * block_size
        offsets[token // block_size] = offset
        _score(rows, num_rows, keys, offset, head_dim, block_size, scores, token)
    for row in range(num_rows):
        num_visible = min(position + row // group + 1 - segment_start, num_tokens)
        maxima[row], sums[row] = _softmax_row(scores, row * SEGMENT_TOKENS, num_visible, num_tokens)
    _weigh(scores, num_rows, num_tokens, values, offsets, block_size, head_dim, out)


@numba.njit
def _join(task, head, item, stride, outs, maxima, sums, group, out):
    """A tile's segments, `stride` items apart from `item` on, into its rows of the output."""
    num_segments = (task[3] + task[2] + SEGMENT_TOKENS - 1) // SEGMENT_TOKENS
    num_heads, head_dim = out.shape[1], out.shape[2]
    for row in range(task[2] * group):
        top = maxima[item, row]
        for segment in range(1, num_segments):
            top = max(top, maxima[item + segment * stride, row])
        weight_sum = np.float32(0)
        for segment in range(num_segments):
            place = item + segment * stride
            weight = np.float32(math.exp(maxima[place, row] - top))
            maxima[place, row] = weight
            weight_sum += weight * sums[place, row]
        start = ((task[1] + row // group) * num_heads + head * group + row % group) * head_dim
        for chunk in range(0, head_dim, LANES):
            dim = min(chunk, head_dim - LANES)
            joined = broadcast(np.float32(0))
            for segment in range(num_segments):
                place = item + segment * stride
                part = load(outs, (place * outs.shape[1] + row) * head_dim + dim)
                joined = multiply_add(part, broadcast(maxima[place, row]), joined)
            store(out, start + dim, multiply(joined, broadcast(np.float32(1) / weight_sum)))


@numba.njit(parallel=True, cache=True)
def _paged_attention(query, keys, values, block_tables, context_lens, cu_seqlens_q, scale, num_workers, out):
    tasks = _plan(context_lens, cu_seqlens_q)
    num_kv_heads = keys.shape[1]
    group = query.shape[1] // num_kv_heads
    num_items = len(tasks) * num_kv_heads  # tasks x key heads
    num_rows = TILE_TOKENS * group
    outs = np.empty((num_items, num_rows, query.shape[2]), np.float32)
    maxima = np.empty((num_items, num_rows), np.float32)
    sums = np.empty((num_items, num_rows), np.float32)
    # Items are dealt out like cards: neighbours cost alike, so every thread gets the same share of each kind.
    for worker in numba.prange(num_workers):
        for item in range(worker, num_items, num_workers):
            task, head = tasks[item // num_kv_heads], item % num_kv_heads
            _attend(
                task, head, query, keys, values, block_tables, scale, outs[item], maxima[item], sums[item]
            )
    for worker in numba.prange(num_workers):
        for item in range(worker, num_items, num_workers):
            task, head = tasks[item // num_kv_heads], item % num_kv_heads
            if task[4] == 0:
                _join(task, head, item, num_kv_heads, outs, maxima, sums, group, out)
