"""All layers of a decoder as one compiled program.

Its threads start once a step. A layer is ten phases, and in each whoever is free takes the next piece of
work: between them nobody is woken, nothing is allocated, and no Python runs. Matrices are of 8 bits
(`kernels.byte_linear`), so every row comes to the same bits in any company.

Owns the phases and their order. `kernels.cpu.fused_stack` gives it its arrays, most of them by address.
"""

from typing import Any

import numba
import numpy as np

from kernels.cpu.amx import WHOLE, configure, release
from kernels.cpu.attention_pieces import configure_for
from kernels.cpu.attention_plan import plan
from kernels.cpu.attention_ways import BYTE_REGISTERS, REGISTERS, WAYS
from kernels.cpu.layer_attention import attend_task, join_task, num_pieces
from kernels.cpu.layer_products import down_task, gate_up_task, num_tasks, output_task, qkv_task
from kernels.cpu.layer_records import DOWN, GATE, OUTPUT, QKV
from kernels.cpu.layer_rows import (
    last_norm_task,
    norm_task,
    num_rope_tasks,
    rope_task,
    second_norm_task,
    split_expanded_task,
)
from kernels.cpu.leaf import leaf
from kernels.cpu.parallel import cycles, shared, shared_in_pairs
from kernels.cpu.pointers import as_longs

__all__ = ["KINDS_OF_WORK", "PHASES_OF_LAYER", "RUN"]

PHASES_OF_LAYER = 10
KINDS_OF_WORK = ("products", "attention", "rows", "waiting")
PRODUCTS, ATTENTION, ROW_WORK, WAITING = range(4)


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


_norm = _phase(ROW_WORK, shared(norm_task))
_qkv = _phase(PRODUCTS, shared(qkv_task))
_rope = _phase(ROW_WORK, shared(rope_task))
_attend = _phase(ATTENTION, shared_in_pairs(attend_task))
_join = _phase(ATTENTION, shared(join_task))
_output = _phase(PRODUCTS, shared(output_task))
_second_norm = _phase(ROW_WORK, shared(second_norm_task))
_gate_up = _phase(PRODUCTS, shared(gate_up_task))
_split_expanded = _phase(ROW_WORK, shared(split_expanded_task))
_down = _phase(PRODUCTS, shared(down_task))
_last_norm = _phase(ROW_WORK, shared(last_norm_task))


@leaf
def _run_layer(worker, layer, way, program, matrices, pools, plans):
    state = (worker, layer, program, matrices, pools)
    num_rows, first = program.num_rows, layer * PHASES_OF_LAYER
    _norm(first, num_rows, state)
    _qkv(first + 1, num_tasks(matrices[layer, QKV], program), state)
    # Joined tuples would forget that the way is a constant.
    _rope(first + 2, num_rope_tasks(program), (worker, layer, program, matrices, pools, way))
    configure_for(way)
    _attend(
        first + 3, num_pieces(program, pools, plans), (worker, layer, program, matrices, pools, plans, way)
    )
    if program.has_registers:
        configure(WHOLE)
    _join(first + 4, len(plans[0]), (*state, plans))
    _output(first + 5, num_tasks(matrices[layer, OUTPUT], program), state)
    _second_norm(first + 6, num_rows, state)
    _gate_up(first + 7, num_tasks(matrices[layer, GATE], program), state)
    _split_expanded(first + 8, num_rows, state)
    _down(first + 9, num_tasks(matrices[layer, DOWN], program), state)


@leaf
def _run_worker(worker, way, program, matrices, pools, plans):
    if program.has_registers:
        configure(WHOLE)
    num_layers = program.num_layers
    for layer in range(num_layers):
        _run_layer(worker, layer, way, program, matrices, pools, plans)
    state = (worker, num_layers, program, matrices, pools)
    _last_norm(num_layers * PHASES_OF_LAYER, program.num_rows, state)
    if program.has_registers or way in (REGISTERS, BYTE_REGISTERS):
        release()


def _compile(way: int) -> Any:
    """Compile the program with one way of attention."""

    @numba.njit(parallel=True, cache=True, nogil=True)
    def run(program, matrices, pools, workspace, block_tables, context_lens, cu_seqlens_q, leaders):
        keys, _, query, _, _, _ = pools
        num_workers, num_kv_heads, head_dim = len(workspace.scores), keys.shape[2], query.shape[2]
        tiles, parts, tasks, members, num_parts = plan(
            context_lens, cu_seqlens_q, leaders, query.shape[1] // num_kv_heads, num_kv_heads, num_workers
        )
        outs = np.empty((num_parts, head_dim), np.float32)
        maxima, sums = np.empty(num_parts, np.float32), np.empty(num_parts, np.float32)
        for worker in numba.prange(num_workers):
            _run_worker(
                worker,
                way,
                program[0],
                matrices,
                pools,
                (tiles, parts, tasks, members, block_tables, workspace, (outs, maxima, sums)),
            )

    return run


# By way: each turns the residual stream into the result. `program` is a PROGRAM record in an array.
RUN = tuple(_compile(way) for way in WAYS)
