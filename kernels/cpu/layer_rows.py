"""The tasks of the layers' program that take a row: norms, rotation, and inputs rounded for the next product.

A task is called as `kernels.cpu.layer_records` says.
"""

import numpy as np

from kernels.cpu.byte_rows import split_row
from kernels.cpu.byte_tiles import ROWS
from kernels.cpu.fused_rows import norm_row
from kernels.cpu.layer_records import DOWN, GATE, QKV, UP, inputs
from kernels.cpu.leaf import leaf
from kernels.cpu.pointers import as_floats, as_integers
from kernels.cpu.rope_store_kv import store_token

__all__ = [
    "last_norm_task",
    "norm_task",
    "num_rope_tasks",
    "rope_task",
    "second_norm_task",
    "split_expanded_task",
]


@leaf
def norm_task(row, state):
    """A row of the residual stream, normed, for the attention's first product."""
    worker, layer, program, matrices, _ = state
    _norm_and_split(row, worker, 2 * layer, program, matrices[layer, QKV].num_inputs)


@leaf
def second_norm_task(row, state):
    """The same for the feed-forward's."""
    worker, layer, program, matrices, _ = state
    _norm_and_split(row, worker, 2 * layer + 1, program, matrices[layer, GATE].num_inputs)


@leaf
def _norm_and_split(row, worker, norm, program, num_inputs):
    size = program.hidden_size
    rows, place = as_floats(program.rows), worker * size
    norms = as_floats(program.norms)
    norm_row(as_floats(program.residual), row * size, size, norms, norm * size, program.eps, rows, place)
    split_row(rows, place, size, row, num_inputs, inputs(program))


@leaf
def last_norm_task(row, state):
    """A row of the residual stream, normed, into the result. The layer is the one after the last."""
    _, layer, program, _, pools = state
    size, norms = program.hidden_size, as_floats(program.norms)
    start, norm = row * size, 2 * layer * size
    norm_row(as_floats(program.residual), start, size, norms, norm, program.eps, pools[3], start)


@leaf
def split_expanded_task(row, state):
    """What the gates let through, for the last product."""
    _, layer, program, matrices, _ = state
    size = matrices[layer, UP].num_outputs
    num_inputs = matrices[layer, DOWN].num_inputs
    split_row(as_floats(program.expanded), row * size, size, row, num_inputs, inputs(program))


@leaf
def _tokens_of_task(program):
    """Tokens of a prompt share cache lines of keys: so many of them go to one worker."""
    return ROWS if program.num_rows > 2 * ROWS * program.num_workers else 1


@leaf
def num_rope_tasks(program):
    """How many tasks a step's tokens make."""
    num_tokens = _tokens_of_task(program)
    return (program.num_rows + num_tokens - 1) // num_tokens


@leaf
def rope_task(task, state):
    """Some tokens' queries, and their keys and values into their slots."""
    num_tokens = _tokens_of_task(state[2])
    for token in range(task * num_tokens, min((task + 1) * num_tokens, state[2].num_rows)):
        _rope_token(token, state)


@leaf
def _rope_token(token, state):
    _, layer, program, _, (keys, values, query, _, qkv, _), way = state
    if program.head_norms != 0:
        _norm_heads(token, layer, qkv, program, keys.shape[2], query.shape[2])
    slot = np.int64(as_integers(program.slot_mapping)[token])
    cosines, sines = as_floats(program.cosines), as_floats(program.sines)
    store_token(way, token, qkv, cosines, sines, keys[layer], values[layer], slot, query)


@leaf
def _norm_heads(token, layer, qkv, program, num_kv_heads, head_dim):
    norms = as_floats(program.head_norms)
    for head in range(program.num_heads + num_kv_heads):
        place = token * qkv.shape[1] + head * head_dim
        is_key = 1 if head >= program.num_heads else 0
        norm_row(qkv, place, head_dim, norms, (2 * layer + is_key) * head_dim, program.eps, qkv, place)
