"""All layers of a decoder as one compiled program.

Its threads start once a step. A layer is ten phases, and in each whoever is free takes the next piece of
work: between them nobody is woken, nothing is allocated, and no Python runs. Matrices are of 8 bits
(`kernels.byte_linear`), so every row comes to the same bits in any company.

Owns the phases and their order. `kernels.cpu.fused_stack` gives it its arrays, most of them by address.
"""

from typing import Any

import numba
import numpy as np

from kernels.cpu.amx import CONFIGURATION, WHOLE, configure, release
from kernels.cpu.attention import REGISTERS, attend_piece, count_pieces, join
from kernels.cpu.attention_plan import plan
from kernels.cpu.byte_linear import CHUNK_ROWS, sum_rows
from kernels.cpu.byte_rows import product_vector, split_row
from kernels.cpu.byte_tiles import COLUMNS, ROWS, SUMS_SIZE, TILE_OUTPUTS
from kernels.cpu.fused_rows import gated, norm_row
from kernels.cpu.leaf import leaf
from kernels.cpu.parallel import cycles, shared, shared_in_pairs
from kernels.cpu.pointers import as_bytes, as_codes, as_floats, as_integers, as_longs
from kernels.cpu.rope_store_kv import rope_store_token
from kernels.cpu.vectors import LANES, add, load, store

__all__ = [
    "DOWN",
    "GATE",
    "KINDS_OF_WORK",
    "MATRIX",
    "OUTPUT",
    "PHASES_OF_LAYER",
    "PROGRAM",
    "QKV",
    "UP",
    "run",
]

PHASES_OF_LAYER = 10
KINDS_OF_WORK = ("products", "attention", "rows", "waiting")
PRODUCTS, ATTENTION, ROW_WORK, WAITING = range(4)

QKV, OUTPUT, GATE, UP, DOWN = range(5)

MATRIX = np.dtype(
    [
        ("codes", np.int64),  # uint8, packed as `byte_tiles` has it
        ("scales", np.int64),  # float32 [num_outputs]
        ("bias", np.int64),  # float32 [num_outputs]
        ("num_inputs", np.int64),  # padded to whole tiles, as are the outputs
        ("num_outputs", np.int64),
    ]
)

# Numbers, and addresses of arrays. Rows of what is computed in are padded to whole tile registers.
PROGRAM = np.dtype(
    [
        ("num_workers", np.int64),
        ("num_layers", np.int64),
        ("num_heads", np.int64),
        ("hidden_size", np.int64),
        ("eps", np.float32),
        ("scale", np.float32),  # of scores
        ("way", np.int64),  # of attention
        ("has_registers", np.int64),
        ("norms", np.int64),  # float32 [2 * num_layers + 1, hidden_size], before each half layer and at last
        ("head_norms", np.int64),  # float32 [num_layers, 2, head_dim], queries' and keys'; 0: there are none
        # The step's.
        ("num_rows", np.int64),
        ("residual", np.int64),  # float32 [num_rows, hidden_size]
        ("cosines", np.int64),  # float32 [num_rows, head_dim / 2]
        ("sines", np.int64),
        ("slot_mapping", np.int64),  # int32 [num_rows]
        # What is computed in.
        ("high", np.int64),  # int8: the inputs of the product that comes next, see `byte_rows`
        ("low", np.int64),
        ("steps", np.int64),  # float32 [num_rows]
        ("excesses", np.int64),  # int32 [num_rows * 2]
        ("expanded", np.int64),  # float32 [num_rows, outputs of UP]
        ("rows", np.int64),  # float32 [num_workers, hidden_size]
        ("sums", np.int64),  # int32 [num_workers, 2, ROWS * SUMS_SIZE]
        ("counters", np.int64),  # int64, of all phases; zeros at the start
        ("cycles", np.int64),  # int64 [len(KINDS_OF_WORK)]: what the first worker's time goes to
    ]
)

# Every piece of work is `work(task, state)`. A state is (worker, layer, program, matrices, pools) and, for
# attention, the plans: matrices are MATRIX records [num_layers, 5]; pools are keys and values of all layers,
# queries [num_rows, num_heads, head_dim], the result [num_rows, hidden_size], and in float32 what QKV gives,
# [num_rows, its outputs], and what attention gives, [num_rows, num_heads, head_dim].


@leaf
def _inputs(program):
    return (
        as_bytes(program.high),
        as_bytes(program.low),
        as_floats(program.steps),
        as_integers(program.excesses),
    )


@leaf
def _norm_task(row, state):
    """A row of the residual stream, normed, for the attention's first product."""
    worker, layer, program, matrices, _ = state
    _norm_and_split(row, worker, 2 * layer, program, matrices[layer, QKV].num_inputs)


@leaf
def _second_norm_task(row, state):
    """The same for the feed-forward's."""
    worker, layer, program, matrices, _ = state
    _norm_and_split(row, worker, 2 * layer + 1, program, matrices[layer, GATE].num_inputs)


@leaf
def _norm_and_split(row, worker, norm, program, num_inputs):
    size = program.hidden_size
    rows, place = as_floats(program.rows), worker * size
    norms = as_floats(program.norms)
    norm_row(as_floats(program.residual), row * size, size, norms, norm * size, program.eps, rows, place)
    split_row(rows, place, size, row, num_inputs, _inputs(program))


@leaf
def _last_norm_task(row, state):
    _, layer, program, _, pools = state
    size, norms = program.hidden_size, as_floats(program.norms)
    start, norm = row * size, 2 * layer * size
    norm_row(as_floats(program.residual), start, size, norms, norm, program.eps, pools[3], start)


@leaf
def _num_chunks(program):
    return (program.num_rows + CHUNK_ROWS - 1) // CHUNK_ROWS


@leaf
def _num_tasks(matrix, program):
    return matrix.num_outputs // TILE_OUTPUTS * _num_chunks(program)


@leaf
def _rows_of(task, matrix, program):
    """The tile of a product's task, and its first row and the one after its last.

    Workers that take turns each read one run of memory, so that it comes before it is asked for.
    """
    num_tiles, num_chunks = matrix.num_outputs // TILE_OUTPUTS, _num_chunks(program)
    turn, chunk = task // num_chunks, task % num_chunks
    run, place = turn % program.num_workers, turn // program.num_workers
    tile = run * (num_tiles // program.num_workers) + min(run, num_tiles % program.num_workers) + place
    return tile, chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, program.num_rows)


@leaf
def _sums_of(program, worker, index):
    """Where a worker's sums begin: there is memory for those of two tiles."""
    return as_integers(program.sums + 4 * ROWS * SUMS_SIZE * (2 * worker + index))


@leaf
def _sum_tile(matrix, tile, row, num_rows, is_first, program, sums):
    """Sums of some rows with a tile of a matrix."""
    start, codes = tile * TILE_OUTPUTS * matrix.num_inputs, as_codes(matrix.codes)
    inputs, has_registers = _inputs(program), program.has_registers != 0
    sum_rows(codes, start, inputs, row, num_rows, matrix.num_inputs, has_registers, is_first, sums)


@leaf
def _factors(matrix, output):
    """Scales and bias of LANES outputs."""
    return load(as_floats(matrix.scales), output), load(as_floats(matrix.bias), output)


@leaf
def _qkv_task(task, state):
    worker, layer, program, matrices, pools = state
    matrix = matrices[layer, QKV]
    tile, start, end = _rows_of(task, matrix, program)
    sums, qkv, inputs = _sums_of(program, worker, 0), pools[4], _inputs(program)
    for row in range(start, end, ROWS):
        num_rows = min(ROWS, end - row)
        _sum_tile(matrix, tile, row, num_rows, row == start, program, sums)
        for column in range(COLUMNS):
            output = tile * TILE_OUTPUTS + column * LANES
            scales, bias = _factors(matrix, output)
            for index in range(num_rows):
                place = index * SUMS_SIZE + column * LANES
                value = product_vector(sums, place, inputs, row + index, scales, bias)
                store(qkv, (row + index) * matrix.num_outputs + output, value)


@leaf
def _output_task(task, state):
    worker, layer, program, matrices, _ = state
    _add_to_residual(task, worker, matrices[layer, OUTPUT], program)


@leaf
def _down_task(task, state):
    worker, layer, program, matrices, _ = state
    _add_to_residual(task, worker, matrices[layer, DOWN], program)


@leaf
def _add_to_residual(task, worker, matrix, program):
    """A product whose result is added to the residual stream."""
    tile, start, end = _rows_of(task, matrix, program)
    sums, residual, size = _sums_of(program, worker, 0), as_floats(program.residual), program.hidden_size
    inputs = _inputs(program)
    for row in range(start, end, ROWS):
        num_rows = min(ROWS, end - row)
        _sum_tile(matrix, tile, row, num_rows, row == start, program, sums)
        for column in range(COLUMNS):
            output = tile * TILE_OUTPUTS + column * LANES
            scales, bias = _factors(matrix, output)
            for index in range(num_rows):
                place = index * SUMS_SIZE + column * LANES
                value = product_vector(sums, place, inputs, row + index, scales, bias)
                target = (row + index) * size + output
                store(residual, target, add(load(residual, target), value))


@leaf
def _gate_up_task(task, state):
    """A tile of gates and the tile of what they let through."""
    worker, layer, program, matrices, _ = state
    gate, up = matrices[layer, GATE], matrices[layer, UP]
    tile, start, end = _rows_of(task, up, program)
    gates, ups = _sums_of(program, worker, 0), _sums_of(program, worker, 1)
    expanded, width, inputs = as_floats(program.expanded), up.num_outputs, _inputs(program)
    for row in range(start, end, ROWS):
        num_rows = min(ROWS, end - row)
        _sum_tile(gate, tile, row, num_rows, row == start, program, gates)
        _sum_tile(up, tile, row, num_rows, row == start, program, ups)
        for column in range(COLUMNS):
            output = tile * TILE_OUTPUTS + column * LANES
            gate_scales, gate_bias = _factors(gate, output)
            up_scales, up_bias = _factors(up, output)
            for index in range(num_rows):
                place = index * SUMS_SIZE + column * LANES
                gate_value = product_vector(gates, place, inputs, row + index, gate_scales, gate_bias)
                up_value = product_vector(ups, place, inputs, row + index, up_scales, up_bias)
                store(expanded, (row + index) * width + output, gated(gate_value, up_value))


@leaf
def _split_expanded_task(row, state):
    _, layer, program, matrices, _ = state
    size = matrices[layer, UP].num_outputs
    num_inputs = matrices[layer, DOWN].num_inputs
    split_row(as_floats(program.expanded), row * size, size, row, num_inputs, _inputs(program))


@leaf
def _tokens_of_task(program):
    """Tokens of a prompt share cache lines of keys: so many of them go to one worker."""
    return ROWS if program.num_rows > 2 * ROWS * program.num_workers else 1


@leaf
def _rope_task(task, state):
    num_tokens = _tokens_of_task(state[2])
    for token in range(task * num_tokens, min((task + 1) * num_tokens, state[2].num_rows)):
        _rope_token(token, state)


@leaf
def _rope_token(token, state):
    _, layer, program, _, (keys, values, query, _, qkv, _) = state
    if program.head_norms != 0:
        _norm_heads(token, layer, qkv, program, keys.shape[2], keys.shape[3])
    slot = np.int64(as_integers(program.slot_mapping)[token])
    cosines, sines = as_floats(program.cosines), as_floats(program.sines)
    rope_store_token(token, qkv, cosines, sines, keys[layer], values[layer], slot, query)


@leaf
def _norm_heads(token, layer, qkv, program, num_kv_heads, head_dim):
    norms = as_floats(program.head_norms)
    for head in range(program.num_heads + num_kv_heads):
        place = token * qkv.shape[1] + head * head_dim
        is_key = 1 if head >= program.num_heads else 0
        norm_row(qkv, place, head_dim, norms, (2 * layer + is_key) * head_dim, program.eps, qkv, place)


@leaf
def _attend_task(piece, following, state):
    worker, layer, program, _, (keys, values, query, _, _, _), plans = state
    tasks, members, block_tables, workspace, partials = plans[2:]
    attend_piece(
        piece,
        following,
        tasks,
        members,
        query,
        keys[layer],
        values[layer],
        block_tables,
        program.scale,
        program.way,
        worker,
        workspace,
        partials,
    )


@leaf
def _join_task(index, state):
    """A tile's heads, joined and made the next product's input."""
    _, layer, program, matrices, (keys, _, _, _, _, attended), plans = state
    tile, parts, partials, num_kv_heads = plans[0][index], plans[1], plans[6], keys.shape[2]
    for head in range(num_kv_heads):
        join(tile, head, parts, partials, program.num_heads // num_kv_heads, attended)
    size, num_inputs = program.num_heads * keys.shape[3], matrices[layer, OUTPUT].num_inputs
    for row in range(tile.first_token, tile.first_token + tile.num_tokens):
        split_row(attended, row * size, size, row, num_inputs, _inputs(program))


def _phase(kind: int, take_part: Any) -> Any:
    """Compile a phase, whose time counts as of a kind."""

    @leaf
    def phase(index, num_tasks, state):
        worker, program = state[0], state[2]
        started = cycles()
        waited = take_part(as_longs(program.counters), index, num_tasks, state)
        if worker == 0:
            spent = as_longs(program.cycles)
            spent[WAITING] += waited
            spent[kind] += cycles() - started - waited

    return phase


_norm = _phase(ROW_WORK, shared(_norm_task))
_qkv = _phase(PRODUCTS, shared(_qkv_task))
_rope = _phase(ROW_WORK, shared(_rope_task))
_attend = _phase(ATTENTION, shared_in_pairs(_attend_task))
_join = _phase(ATTENTION, shared(_join_task))
_output = _phase(PRODUCTS, shared(_output_task))
_second_norm = _phase(ROW_WORK, shared(_second_norm_task))
_gate_up = _phase(PRODUCTS, shared(_gate_up_task))
_split_expanded = _phase(ROW_WORK, shared(_split_expanded_task))
_down = _phase(PRODUCTS, shared(_down_task))
_last_norm = _phase(ROW_WORK, shared(_last_norm_task))


@leaf
def _run_layer(worker, layer, program, matrices, pools, plans):
    state = (worker, layer, program, matrices, pools)
    num_rows, first = program.num_rows, layer * PHASES_OF_LAYER
    _norm(first, num_rows, state)
    _qkv(first + 1, _num_tasks(matrices[layer, QKV], program), state)
    num_tokens = _tokens_of_task(program)
    _rope(first + 2, (num_rows + num_tokens - 1) // num_tokens, state)
    if program.way == REGISTERS:
        configure(CONFIGURATION)
    _attend(first + 3, count_pieces(plans[2], pools[0][layer], program.num_workers), (*state, plans))
    if program.has_registers:
        configure(WHOLE)
    _join(first + 4, len(plans[0]), (*state, plans))
    _output(first + 5, _num_tasks(matrices[layer, OUTPUT], program), state)
    _second_norm(first + 6, num_rows, state)
    _gate_up(first + 7, _num_tasks(matrices[layer, GATE], program), state)
    _split_expanded(first + 8, num_rows, state)
    _down(first + 9, _num_tasks(matrices[layer, DOWN], program), state)


@leaf
def _run_worker(worker, program, matrices, pools, plans):
    if program.has_registers:
        configure(WHOLE)
    num_layers = program.num_layers
    for layer in range(num_layers):
        _run_layer(worker, layer, program, matrices, pools, plans)
    state = (worker, num_layers, program, matrices, pools)
    _last_norm(num_layers * PHASES_OF_LAYER, program.num_rows, state)
    if program.has_registers:
        release()


@numba.njit(parallel=True, cache=True, nogil=True)
def run(program, matrices, pools, workspace, block_tables, context_lens, cu_seqlens_q, leaders):
    """Turn the residual stream into the result. `program` is a PROGRAM record in an array."""
    keys, _, query, _, _, _ = pools
    num_workers, num_kv_heads, head_dim = len(workspace.scores), keys.shape[2], keys.shape[3]
    tiles, parts, tasks, members, num_parts = plan(
        context_lens, cu_seqlens_q, leaders, query.shape[1] // num_kv_heads, num_kv_heads, num_workers
    )
    outs = np.empty((num_parts, head_dim), np.float32)
    maxima, sums = np.empty(num_parts, np.float32), np.empty(num_parts, np.float32)
    for worker in numba.prange(num_workers):
        _run_worker(
            worker,
            program[0],
            matrices,
            pools,
            (tiles, parts, tasks, members, block_tables, workspace, (outs, maxima, sums)),
        )
