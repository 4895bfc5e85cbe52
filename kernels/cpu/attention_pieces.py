"""Pieces of attention's work: a task for some key heads, by a worker that knows which piece it takes next.

Owns which heads make a piece, the pool's ways to compute one, and what a step's attention computes in.
"""

from typing import Any

import torch

from kernels.cpu.amx import CONFIGURATION, WHOLE, configure
from kernels.cpu.attention import attend, make_workspace
from kernels.cpu.attention_ahead import forget, heads_together, look_ahead
from kernels.cpu.attention_plan import TASKS_PER_WORKER
from kernels.cpu.attention_ways import BYTE_REGISTERS, REGISTERS
from kernels.cpu.byte_attention import attend_bytes, make_byte_workspace
from kernels.cpu.leaf import leaf
from kernels.cpu.one_of import one_of
from kernels.cpu.vectors import LANES

__all__ = ["attend_piece", "configure_for", "count_pieces", "workspace_for"]

_attend = one_of(attend, attend, attend, attend_bytes, attend_bytes)  # by way


def workspace_for(dtype: torch.dtype, num_workers: int, head_dim: int) -> Any:
    """What each worker computes in, for a pool of `dtype`."""
    if dtype == torch.int8:
        return make_byte_workspace(num_workers, head_dim)
    return make_workspace(num_workers, head_dim, dtype)


@leaf
def configure_for(way):
    """Give this thread's tile registers the shapes that a way asks for."""
    if way == REGISTERS:
        configure(CONFIGURATION)
    if way == BYTE_REGISTERS:
        configure(WHOLE)


@leaf
def count_pieces(tasks, keys, num_workers):
    """How many pieces of work the tasks make: each is a task for some key heads."""
    return len(tasks) * (keys.shape[1] // _heads_of_piece(tasks, keys, num_workers))


@leaf
def _heads_of_piece(tasks, keys, num_workers):
    """Key heads lie side by side in a block, so one worker reads them, if there are tasks enough."""
    return heads_together(keys) if len(tasks) >= TASKS_PER_WORKER * num_workers else 1


@leaf
def attend_piece(
    piece, following, tasks, members, query, keys, values, block_tables, scale, way, worker, work, partials
):
    """One piece of work, by a worker that takes `following` next, which may lie past the last one."""
    num_heads = _heads_of_piece(tasks, keys, len(work.scores))
    pieces_of_task, ahead = keys.shape[1] // num_heads, work.ahead[worker]
    task, first = tasks[piece // pieces_of_task], piece % pieces_of_task * num_heads
    if following < len(tasks) * pieces_of_task:
        num_calls = num_heads * -(-task.num_seen // LANES) * (1 + -(-query.shape[2] // (2 * LANES)))
        next_task, head = tasks[following // pieces_of_task], following % pieces_of_task * num_heads
        look_ahead(next_task, head, num_heads, keys, values, block_tables, num_calls, ahead)
    else:
        forget(ahead)
    for head in range(first, first + num_heads):
        _attend(
            way, task, head, members, query, keys, values, block_tables, scale, way, worker, work, partials
        )
