"""Attention of one task for one key head over blocks of 8 bits: see `kernels.byte_cache`.

As `kernels.cpu.attention` has it, but that queries are rounded as keys are, and weights, with the step of
each value in them, to 16 bits. So all products are sums of integers, which are exact, and vectors and tile
registers give the same bits.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import types
from numba.extending import intrinsic

from kernels.byte_linear import TINY
from kernels.cpu import lowering
from kernels.cpu.arrays import as_array
from kernels.cpu.attention_ahead import AHEAD_SIZE
from kernels.cpu.attention_columns import SCORE_STRIDE
from kernels.cpu.attention_ways import BYTE_REGISTERS
from kernels.cpu.byte_attention_sums import (
    DEPTH,
    GROUP_ROWS,
    MAX_ROWS,
    SUMS_SIZE,
    WEIGHT_PART,
    WEIGHT_STRIDE,
    copy_values,
    exact_scores,
    join_weighed,
    place_of,
    score_registers,
    score_vectors,
    weigh_registers,
    weigh_vectors,
)
from kernels.cpu.byte_blocks import TOGETHER, head_bytes, load_steps, round_query
from kernels.cpu.exponentials import exp2_rough
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    larger,
    larger_magnitude,
    largest,
    largest_magnitude,
    load,
    mask_from,
    multiply,
    multiply_add,
    store,
    total,
    zero_from,
)
from kernels.partitions import PARTITION_TOKENS

__all__ = ["ByteWorkspace", "attend_bytes", "make_byte_workspace"]

MAX_RUNS = PARTITION_TOKENS // LANES
VECTOR_ROWS = 4  # so many rows at most are summed faster by vectors than by tile registers
LOG2_E = np.float32(1.4426950408889634)
WEIGHT_TOP = WEIGHT_PART * WEIGHT_PART - 1
ZERO, TINY_NUMBER, TOP_NUMBER, TOP_INVERSE = (np.float32(x) for x in (0, TINY, WEIGHT_TOP, 1 / WEIGHT_TOP))
NOTHING = np.float32(-np.inf)


class ByteWorkspace(NamedTuple):
    """What each worker computes in: the first dimension is the worker."""

    queries: npt.NDArray[np.int8]  # [num_workers, MAX_ROWS * head_dim]
    steps: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS], of queries
    excesses: npt.NDArray[np.int32]  # [num_workers, MAX_ROWS]
    scores: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS * SCORE_STRIDE]; sums at first
    weights: npt.NDArray[np.uint8]  # [num_workers, 2 * MAX_ROWS * WEIGHT_STRIDE], in groups
    weight_steps: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS]
    key_steps: npt.NDArray[np.float32]  # [num_workers, PARTITION_TOKENS]
    value_steps: npt.NDArray[np.float32]  # [num_workers, PARTITION_TOKENS]
    values: npt.NDArray[np.int8]  # [num_workers, PARTITION_TOKENS * head_dim], as tile registers take them
    sums: npt.NDArray[np.int32]  # [num_workers, SUMS_SIZE]
    places: npt.NDArray[np.int64]  # [num_workers, 3 * MAX_RUNS]: keys, values, steps
    ahead: npt.NDArray[np.int64]  # [num_workers, AHEAD_SIZE], zeros at first


def make_byte_workspace(num_workers: int, head_dim: int) -> ByteWorkspace:
    """Fresh arrays that begin with a cache line."""

    def fresh(size: int, kind: torch.dtype) -> npt.NDArray[Any]:
        return as_array(torch.zeros(num_workers, size, dtype=kind))

    return ByteWorkspace(
        queries=fresh(MAX_ROWS * head_dim, torch.int8),
        steps=fresh(MAX_ROWS, torch.float32),
        excesses=fresh(MAX_ROWS, torch.int32),
        scores=fresh(MAX_ROWS * SCORE_STRIDE, torch.float32),
        weights=fresh(2 * MAX_ROWS * WEIGHT_STRIDE, torch.uint8),
        weight_steps=fresh(MAX_ROWS, torch.float32),
        key_steps=fresh(PARTITION_TOKENS, torch.float32),
        value_steps=fresh(PARTITION_TOKENS, torch.float32),
        values=fresh(PARTITION_TOKENS * head_dim, torch.int8),
        sums=fresh(SUMS_SIZE, torch.int32),
        places=fresh(3 * MAX_RUNS, torch.int64),
        ahead=fresh(AHEAD_SIZE, torch.int64),
    )


@leaf
def attend_bytes(task, head, members, query, keys, values, block_tables, scale, way, worker, work, partials):
    """As `attention.attend`. The way BYTE_REGISTERS asks for `amx.configure` before."""
    group, head_dim, block_size = query.shape[1] // keys.shape[1], query.shape[2], keys.shape[3]
    factor, num_runs = np.float32(scale) * LOG2_E, -(-task.num_seen // LANES)
    places, ahead, sums = work.places[worker], work.ahead[worker], work.sums[worker]
    _find_runs(task, head, keys.shape[1], head_dim, block_size, block_tables, places)
    queries, scores, weights = work.queries[worker], work.scores[worker], work.weights[worker]
    query_steps, excesses, weight_steps = work.steps[worker], work.excesses[worker], work.weight_steps[worker]
    key_steps, value_steps = work.key_steps[worker], work.value_steps[worker]
    copy = work.values[worker]
    _find_steps(keys, values, places, num_runs, key_steps, value_steps)
    if way == BYTE_REGISTERS and task.num_rows > VECTOR_ROWS:
        copy_values(values, places[MAX_RUNS:], num_runs, head_dim, copy)
    first_row = task.row + head * task.num_rows
    for start in range(0, task.num_rows, MAX_ROWS):
        num_rows = min(MAX_ROWS, task.num_rows - start)
        use_registers = way == BYTE_REGISTERS and num_rows > VECTOR_ROWS
        for row in range(num_rows):
            token = members[task.first_member + (start + row) // group].token
            place = (token * query.shape[1] + head * group + (start + row) % group) * head_dim
            query_steps[row], excesses[row] = round_query(query, place, head_dim, queries, row * head_dim)
        if use_registers:
            score_registers(queries, head_dim, keys, places, num_runs, block_size, ahead, scores)
        else:
            score_vectors(queries, num_rows, head_dim, keys, places, num_runs, block_size, ahead, scores)
        for row in range(num_rows):
            num_visible = max(0, members[task.first_member + (start + row) // group].num_visible)
            top = _find_scores(scores, row, num_visible, excesses[row], key_steps)
            row_factor, place = query_steps[row] * factor, first_row + start + row
            partials[1][place] = top * row_factor if num_visible > 0 else NOTHING
            partials[2][place], weight_steps[row] = _softmax_row(
                scores, row, row_factor, top, num_visible, num_runs, value_steps, weights
            )
        outs = partials[0], (first_row + start) * head_dim
        _weigh(
            use_registers,
            weights,
            weight_steps,
            num_rows,
            head_dim,
            num_runs,
            values,
            places,
            copy,
            ahead,
            sums,
            outs,
        )


@leaf
def _find_runs(task, head, num_kv_heads, head_dim, block_size, block_tables, places):
    """Where each run's keys, values and steps begin in the pools."""
    first, size, run = task.segment * PARTITION_TOKENS // block_size, head_bytes(head_dim, block_size), 0
    for index in range(first, first - (-task.num_seen // block_size)):
        base = (np.int64(block_tables[task.sequence, index]) * num_kv_heads + head) * size
        for slot in range(0, block_size, LANES):
            places[run] = base + TOGETHER * slot
            places[MAX_RUNS + run] = base + slot * head_dim
            places[2 * MAX_RUNS + run] = base + head_dim * block_size + 4 * slot
            run += 1


@leaf
def _find_steps(keys, values, places, num_runs, key_steps, value_steps):
    """The steps of the segment side by side; of slots that nobody wrote they may be anything."""
    for run in range(num_runs):
        place = places[2 * MAX_RUNS + run]
        store(key_steps, run * LANES, load_steps(keys, place))
        store(value_steps, run * LANES, load_steps(values, place))


@intrinsic
def _store_weights(typing, weights, high, low, vector, other):
    """Twice LANES numbers from 0 to WEIGHT_TOP, rounded, as their high and low parts."""

    def codegen(context, builder, signature, arguments):
        codes = (lowering.whole_numbers(builder, numbers) for numbers in arguments[3:])
        high, low = lowering.split_words(builder, *codes)
        for place, part in ((arguments[1], high), (arguments[2], low)):
            target = lowering.address(context, builder, arguments[0], weights, place)
            builder.store(part, builder.bitcast(target, part.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(weights, types.intp, types.intp, lowering.VECTOR, lowering.VECTOR), codegen


@leaf
def _find_scores(scores, row, num_visible, excess, key_steps):
    """Put a row's scores, but for its own factor, in the place of its sums. Returns the largest."""
    start, together = row * SCORE_STRIDE, 2 * LANES
    highest = other_highest = broadcast(NOTHING)
    for token in range(0, num_visible, together):
        score = multiply(exact_scores(scores, start + token, excess), load(key_steps, token))
        other = exact_scores(scores, start + token + LANES, excess)
        other = multiply(other, load(key_steps, token + LANES))
        store(scores, start + token, score)
        store(scores, start + token + LANES, other)
        if num_visible - token < together:
            score = mask_from(score, num_visible - token)
            other = mask_from(other, num_visible - token - LANES)
        highest, other_highest = larger(score, highest), larger(other, other_highest)
    return largest(larger(highest, other_highest))


@leaf
def _softmax_row(scores, row, factor, top, num_visible, num_runs, value_steps, weights):
    """A row's weights times the values' steps, zero from num_visible on, up to a multiple of DEPTH.

    Returns the sum of the weights, and the step of what was stored, which goes by the largest product: where
    one token takes nearly all of the weight and has a small value, the others are not lost.
    """
    start, high = row * SCORE_STRIDE, place_of(row) * WEIGHT_STRIDE
    low, together = high + GROUP_ROWS * WEIGHT_STRIDE, 2 * LANES
    scale, shift, zeros = broadcast(factor), broadcast(-(top * factor)), broadcast(ZERO)
    weight_sum = other_sum = peaks = other_peaks = zeros
    for token in range(0, num_visible, together):
        weight = multiply_add(load(scores, start + token), scale, shift)
        other = multiply_add(load(scores, start + token + LANES), scale, shift)
        num_left = num_visible - token
        if num_left < together:
            weight, other = mask_from(weight, num_left), mask_from(other, num_left - LANES)
        weight, other = exp2_rough(weight), exp2_rough(other)
        weight_sum, other_sum = add(weight_sum, weight), add(other_sum, other)
        weight = multiply(weight, load(value_steps, token))
        other = multiply(other, load(value_steps, token + LANES))
        if num_left < together:  # the step of a value that the row does not see may be NaN
            weight, other = zero_from(weight, num_left), zero_from(other, num_left - LANES)
        peaks, other_peaks = larger_magnitude(peaks, weight), larger_magnitude(other_peaks, other)
        store(scores, start + token, weight)
        store(scores, start + token + LANES, other)
    peak = largest_magnitude(larger_magnitude(peaks, other_peaks))
    step = inverse = ZERO
    if not peak <= TINY_NUMBER:
        step, inverse = peak * TOP_INVERSE, TOP_NUMBER / peak
    inverses = broadcast(inverse)
    for token in range(0, num_visible, together):
        weight = multiply(load(scores, start + token), inverses)
        other = multiply(load(scores, start + token + LANES), inverses)
        _store_weights(weights, high + token, low + token, weight, other)
    first_hidden = -(-num_visible // together) * together
    for token in range(first_hidden, -(-num_runs * LANES // DEPTH) * DEPTH, together):
        _store_weights(weights, high + token, low + token, zeros, zeros)
    return total(add(weight_sum, other_sum)), step


@leaf
def _weigh(
    use_registers,
    weights,
    weight_steps,
    num_rows,
    head_dim,
    num_runs,
    values,
    places,
    copy,
    ahead,
    sums,
    outs,
):
    """Sums of values by weight, into rows of `outs`: an array, and where the first row begins."""
    out, first = outs
    for dim in range(0, head_dim, 2 * LANES):
        if use_registers:
            weigh_registers(weights, num_rows, head_dim, num_runs, copy, dim, ahead, sums)
        else:
            weigh_vectors(weights, num_rows, head_dim, num_runs, values, places[MAX_RUNS:], dim, ahead, sums)
        for row in range(num_rows):
            place, target = place_of(row) * LANES, first + row * head_dim
            steps = broadcast(weight_steps[row])
            weighed = join_weighed(sums, place)
            store(out, target + dim, multiply(weighed, steps))
            weighed = join_weighed(sums, place + SUMS_SIZE // 2)
            store(out, target + dim + LANES, multiply(weighed, steps))
