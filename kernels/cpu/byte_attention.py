"""Attention of one task for one key head over blocks of 8 bits: see `kernels.byte_cache`.

As `kernels.cpu.attention` has it, but that queries are rounded to 15 bits and weights, with the step of each
value in them, to 16. So all products are sums of integers, which are exact, and vectors and tile registers
give the same bits.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.byte_linear import PART, TINY
from kernels.cpu import lowering
from kernels.cpu.arrays import as_array
from kernels.cpu.attention_ahead import AHEAD_SIZE, ask
from kernels.cpu.attention_columns import SCORE_STRIDE, WEIGHT_STRIDE
from kernels.cpu.attention_ways import BYTE_REGISTERS
from kernels.cpu.byte_attention_sums import (
    GROUP_ROWS,
    MAX_ROWS,
    SUMS_SIZE,
    joined,
    place_of,
    score_registers,
    score_vectors,
    weigh_registers,
    weigh_vectors,
)
from kernels.cpu.byte_blocks import TOGETHER, head_bytes, load_steps
from kernels.cpu.byte_rows import split_row
from kernels.cpu.exponentials import exp2_rough
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import (
    LANES,
    add,
    broadcast,
    larger,
    largest,
    load,
    mask_from,
    multiply,
    store,
    subtract,
    total,
)
from kernels.partitions import PARTITION_TOKENS

__all__ = ["ByteWorkspace", "attend_bytes", "make_byte_workspace"]

MAX_RUNS = PARTITION_TOKENS // LANES
VECTOR_ROWS = 4  # so many rows at most are summed faster by vectors than by tile registers
LOG2_E = np.float32(1.4426950408889634)
WEIGHT_PART = 256
WEIGHT_TOP = 65000  # two bytes hold it, and what rough exponentials are above one
ZERO, TINY_NUMBER, TOP_NUMBER, TOP_INVERSE = (np.float32(x) for x in (0, TINY, WEIGHT_TOP, 1 / WEIGHT_TOP))
NOTHING = np.float32(-np.inf)
NO_EXCESS = np.int32(0)
BYTES = ir.VectorType(ir.IntType(8), LANES)

_join_scores, _join_weighed = joined[PART], joined[WEIGHT_PART]


class ByteWorkspace(NamedTuple):
    """What each worker computes in: the first dimension is the worker."""

    queries: npt.NDArray[np.int8]  # [num_workers, 2 * MAX_ROWS * head_dim], in groups
    steps: npt.NDArray[np.float32]  # [num_workers, 2 * MAX_ROWS], of queries
    excesses: npt.NDArray[np.int32]  # [num_workers, 4 * MAX_ROWS]
    scores: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS * SCORE_STRIDE]
    weights: npt.NDArray[np.uint8]  # [num_workers, 2 * MAX_ROWS * WEIGHT_STRIDE], in groups
    weight_steps: npt.NDArray[np.float32]  # [num_workers, MAX_ROWS]
    peaks: npt.NDArray[np.float32]  # [num_workers, MAX_RUNS + 1], of values' steps
    sums: npt.NDArray[np.int32]  # [num_workers, SUMS_SIZE]
    places: npt.NDArray[np.int64]  # [num_workers, 3 * MAX_RUNS]: keys, values, steps
    ahead: npt.NDArray[np.int64]  # [num_workers, AHEAD_SIZE], zeros at first


def make_byte_workspace(num_workers: int, head_dim: int) -> ByteWorkspace:
    """Fresh arrays that begin with a cache line."""

    def fresh(size: int, kind: torch.dtype) -> npt.NDArray[Any]:
        return as_array(torch.zeros(num_workers, size, dtype=kind))

    return ByteWorkspace(
        queries=fresh(2 * MAX_ROWS * head_dim, torch.int8),
        steps=fresh(2 * MAX_ROWS, torch.float32),
        excesses=fresh(4 * MAX_ROWS, torch.int32),
        scores=fresh(MAX_ROWS * SCORE_STRIDE, torch.float32),
        weights=fresh(2 * MAX_ROWS * WEIGHT_STRIDE, torch.uint8),
        weight_steps=fresh(MAX_ROWS, torch.float32),
        peaks=fresh(MAX_RUNS + 1, torch.float32),
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
    weight_steps, peaks = work.weight_steps[worker], work.peaks[worker]
    _find_peaks(values, places, num_runs, peaks)
    parts = queries, queries[GROUP_ROWS * head_dim :], work.steps[worker], work.excesses[worker]
    first_row = task.row + head * task.num_rows
    for start in range(0, task.num_rows, MAX_ROWS):
        num_rows = min(MAX_ROWS, task.num_rows - start)
        use_registers = way == BYTE_REGISTERS and num_rows > VECTOR_ROWS
        for row in range(num_rows):
            token = members[task.first_member + (start + row) // group].token
            place = (token * query.shape[1] + head * group + (start + row) % group) * head_dim
            split_row(query, place, head_dim, place_of(row), head_dim, parts)
        _score(use_registers, parts, factor, num_rows, head_dim, num_runs, keys, places, ahead, sums, scores)
        for row in range(num_rows):
            num_visible = members[task.first_member + (start + row) // group].num_visible
            place = first_row + start + row
            partials[1][place], partials[2][place], weight_steps[row] = _softmax_row(
                scores, row, num_visible, num_runs, values, places, peaks, weights
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
def _score(use_registers, parts, factor, num_rows, head_dim, num_runs, keys, places, ahead, sums, scores):
    """Scores, in powers of two."""
    queries, _, query_steps, excesses = parts
    block_size = keys.shape[3]
    for run in range(0, num_runs, 2):
        other = min(run + 1, num_runs - 1)  # may be the same once more, and agrees with itself
        ask(ahead)
        if use_registers:
            score_registers(queries, num_rows, head_dim, keys, places[run], places[other], block_size, sums)
        else:
            score_vectors(queries, num_rows, head_dim, keys, places[run], places[other], block_size, sums)
        ask(ahead)
        steps = load_steps(keys, places[2 * MAX_RUNS + run])
        other_steps = load_steps(keys, places[2 * MAX_RUNS + other])
        for row in range(num_rows):
            place = place_of(row)
            high, low = excesses[2 * place], excesses[2 * place + 1]
            factors = broadcast(query_steps[place] * factor)
            score = multiply(_join_scores(sums, place * LANES, high, low), factors)
            store(scores, row * SCORE_STRIDE + run * LANES, multiply(score, steps))
            score = multiply(_join_scores(sums, place * LANES + SUMS_SIZE // 2, high, low), factors)
            store(scores, row * SCORE_STRIDE + other * LANES, multiply(score, other_steps))


@leaf
def _find_peaks(values, places, num_runs, peaks):
    """peaks[run]: the largest step of a value before the run, or NaN if there is a NaN among them."""
    peak = peaks[0] = ZERO
    for run in range(num_runs):
        peak = _larger_or_nan(peak, load_steps(values, places[2 * MAX_RUNS + run]))
        peaks[run + 1] = peak


@leaf
def _larger_or_nan(peak, steps):
    """The larger of a peak and the steps; NaN if any is. Lanes of minus infinity count for nothing."""
    is_number = peak == peak and not np.isnan(total(steps))
    return max(peak, largest(steps)) if is_number else np.float32(np.nan)


@intrinsic
def _store_weights(typing, weights, high, low, vector):
    """LANES numbers from 0 to WEIGHT_TOP, rounded, as their high and low parts."""

    def codegen(context, builder, signature, arguments):
        # From 2 ** 23 on the last bit of a float32 number counts one: the lower bits are the rounded number.
        raised = builder.fadd(arguments[3], lowering.constant(float(1 << 23)))
        code = builder.bitcast(raised, lowering.INTS)
        for place, part in (
            (arguments[1], builder.lshr(code, lowering.int_constant(8))),
            (arguments[2], code),
        ):
            target = lowering.address(context, builder, arguments[0], weights, place)
            builder.store(builder.trunc(part, BYTES), builder.bitcast(target, BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.none(weights, types.intp, types.intp, lowering.VECTOR), codegen


@leaf
def _softmax_row(scores, row, num_visible, num_runs, values, places, peaks, weights):
    """A row's weights times the values' steps, zero from num_visible on.

    Returns the maximum, in powers of two, the sum of the weights, and the step of what was stored, which goes
    by the largest step of a value that the row sees.
    """
    start, high = row * SCORE_STRIDE, place_of(row) * WEIGHT_STRIDE
    low = high + GROUP_ROWS * WEIGHT_STRIDE
    num_whole = max(num_visible, 0) // LANES
    edge, num_left = num_whole * LANES, max(num_visible, 0) % LANES
    highest, peak = broadcast(NOTHING), peaks[num_whole]
    for token in range(0, edge, LANES):
        highest = larger(load(scores, start + token), highest)
    if num_left:
        highest = larger(mask_from(load(scores, start + edge), num_left), highest)
        steps = load_steps(values, places[2 * MAX_RUNS + num_whole])
        peak = _larger_or_nan(peak, mask_from(steps, num_left))
    top = largest(highest)
    step = inverse = ZERO
    if not peak <= TINY_NUMBER:
        step, inverse = peak * TOP_INVERSE, TOP_NUMBER / peak
    tops, inverses, zeros, weight_sum = broadcast(top), broadcast(inverse), broadcast(ZERO), broadcast(ZERO)
    for run in range(num_whole):
        token = run * LANES
        weight = exp2_rough(subtract(load(scores, start + token), tops))
        weight_sum = add(weight_sum, weight)
        steps = multiply(load_steps(values, places[2 * MAX_RUNS + run]), inverses)
        _store_weights(weights, high + token, low + token, multiply(weight, steps))
    if num_left:
        weight = exp2_rough(mask_from(subtract(load(scores, start + edge), tops), num_left))
        weight_sum = add(weight_sum, weight)
        # Steps of slots that nobody wrote may be NaN, and their weights are zero.
        steps = multiply(load_steps(values, places[2 * MAX_RUNS + num_whole]), inverses)
        _store_weights(weights, high + edge, low + edge, larger(multiply(weight, steps), zeros))
        edge += LANES
    for token in range(edge, num_runs * LANES, LANES):
        _store_weights(weights, high + token, low + token, zeros)
    return top, total(weight_sum), step


@leaf
def _weigh(
    use_registers, weights, weight_steps, num_rows, head_dim, num_runs, values, places, ahead, sums, outs
):
    """Sums of values by weight, into rows of `outs`: an array, and where the first row begins."""
    out, first = outs
    value_places = places[MAX_RUNS:]
    for chunk in range(0, head_dim, 2 * LANES):
        dim = min(chunk, max(head_dim - 2 * LANES, 0))  # chunks may overlap, and agree where they do
        other = min(dim + LANES, head_dim - LANES)
        if use_registers:
            weigh_registers(
                weights, num_rows, head_dim, num_runs, values, value_places, dim, other, ahead, sums
            )
        else:
            weigh_vectors(
                weights, num_rows, head_dim, num_runs, values, value_places, dim, other, ahead, sums
            )
        for row in range(num_rows):
            place, target = place_of(row) * LANES, first + row * head_dim
            steps = broadcast(weight_steps[row])
            weighed = _join_weighed(sums, place, NO_EXCESS, NO_EXCESS)
            store(out, target + dim, multiply(weighed, steps))
            weighed = _join_weighed(sums, place + SUMS_SIZE // 2, NO_EXCESS, NO_EXCESS)
            store(out, target + other, multiply(weighed, steps))
