"""Attention of ragged spans over paged keys and values, compiled for the CPU.

The work is cut into tasks of query tokens, often of several sequences, x the query heads of one key head x
PARTITION_TOKENS of context, so that a key or value that was loaded serves many rows: see `attention_plan`. A
task leaves its rows' maxima, sums and unnormalized outputs; a second pass joins the segments of each row in
their order: see `attention`. Where a row's segments begin and in which order anything is added depends on
positions alone, never on the rest of the batch.

In bfloat16 the blocks' numbers lie in pairs: see `pairs`.
"""

from typing import Any

import numba
import numpy as np
import torch

from kernels.byte_cache import HEAD_MULTIPLE, takes_bytes
from kernels.cpu.amx import release
from kernels.cpu.arrays import as_array
from kernels.cpu.attention import join
from kernels.cpu.attention_pieces import attend_piece, configure_for, count_pieces, workspace_for
from kernels.cpu.attention_plan import plan
from kernels.cpu.attention_ways import BYTE_REGISTERS, REGISTERS, WAYS, way_for
from kernels.cpu.parallel import take_turn
from kernels.cpu.vectors import LANES
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
    *,
    way: int | None = None,
) -> torch.Tensor:  # as query
    """The operation that `kernels.paged_attention` defines, in the fastest way unless it is named."""
    head_dim = query.shape[2]
    check_shape(head_dim, keys.shape[3], keys.dtype)
    out = torch.empty_like(query)
    num_workers = numba.get_num_threads()
    if way is None:
        way = way_for(keys.dtype, head_dim)
    _ATTEND_ALL[way](
        as_array(query),
        as_array(keys),
        as_array(values),
        block_tables.numpy(),
        context_lens.numpy(),
        cu_seqlens_q.numpy(),
        leaders.numpy(),
        np.float32(scale),
        workspace_for(keys.dtype, num_workers, head_dim),
        as_array(out),
    )
    return out


def check_shape(head_dim: int, block_size: int, dtype: torch.dtype) -> None:
    """Raises ValueError for blocks and heads that do not fill vectors."""
    if block_size % LANES or PARTITION_TOKENS % block_size:
        raise ValueError(
            f"blocks of {block_size} tokens: on a CPU the block size is a multiple of {LANES} that divides "
            f"{PARTITION_TOKENS}"
        )
    if head_dim < LANES or head_dim % 2:
        raise ValueError(
            f"heads of {head_dim} dimensions: on a CPU a head has an even number of at least {LANES}"
        )
    if dtype == torch.int8 and not takes_bytes(head_dim):
        raise ValueError(
            f"heads of {head_dim} dimensions: those kept in 8 bits have a multiple of {HEAD_MULTIPLE}"
        )


def _compile(way: int) -> Any:
    """Compile all of attention in one way."""

    @numba.njit(parallel=True, cache=True, nogil=True)
    def attend_all(query, keys, values, block_tables, context_lens, cu_seqlens_q, leaders, scale, work, out):
        num_kv_heads, num_workers = keys.shape[1], len(work.scores)
        group = query.shape[1] // num_kv_heads
        tiles, parts, tasks, members, num_rows = plan(
            context_lens, cu_seqlens_q, leaders, group, num_kv_heads, num_workers
        )
        outs = np.empty((num_rows, query.shape[2]), np.float32)
        partials = (outs, np.empty(num_rows, np.float32), np.empty(num_rows, np.float32))
        num_pieces = count_pieces(tasks, keys, num_workers)
        # Whoever is free takes the next item: tasks differ in size, and cores are shared with other work.
        taken = np.empty(1, np.int64)
        taken[0] = 0  # np.zeros would be a parallel loop, which costs more than a short step's attention
        for worker in numba.prange(num_workers):
            configure_for(way)
            piece = take_turn(taken)
            while piece < num_pieces:
                following = take_turn(taken)
                attend_piece(
                    piece,
                    following,
                    tasks,
                    members,
                    query,
                    keys,
                    values,
                    block_tables,
                    scale,
                    way,
                    worker,
                    work,
                    partials,
                )
                piece = following
            if way in (REGISTERS, BYTE_REGISTERS):
                release()
        for worker in numba.prange(num_workers):
            for item in range(worker, len(tiles) * num_kv_heads, num_workers):
                join(tiles[item // num_kv_heads], item % num_kv_heads, parts, partials, group, out)

    return attend_all


_ATTEND_ALL = tuple(_compile(way) for way in WAYS)
