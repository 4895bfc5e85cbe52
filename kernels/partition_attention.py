"""Attention of short spans over one partition of the context at a time (see `kernels.partitions`).

For every token of a short span, partition that it sees and query head: the largest score m, the sum of
exp(score - m), and the sum of exp(score - m) * value, with the scores and maxima as powers of two. Joined by
their maxima (`kernels.merge_partitions`) they give what softmax over the whole context gives.

Tokens that see the same of a partition meet it in one program. A row's numbers depend neither on who else is
there nor on how many programs share the partitions.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.attention_tiles import (
    HeadShape,
    Scales,
    fold_nothing,
    fold_tile,
    launch_of_partitions,
    score_precision,
    score_tile,
)
from kernels.attention_work import ShortSpans
from kernels.partitions import PARTITION_TOKENS
from kernels.pool_types import find_capability

__all__ = ["PartitionSums", "attend_partitions", "attend_partitions_reference", "choose_splits"]

_MIN_PROGRAMS = 1024  # several for each of a GPU's multiprocessors
_MAX_WALK = 32  # partitions of one program, so that one long context does not keep a step waiting


class PartitionSums(NamedTuple):
    """Where a slot does not see a partition they hold anything."""

    maxima: torch.Tensor  # [num_partitions, num_slots, num_heads] float32
    sums: torch.Tensor  # [num_partitions, num_slots, num_heads] float32
    outs: torch.Tensor  # [num_partitions, num_slots, num_heads, head_dim] float32


def choose_splits(num_partitions: int, num_slots: int, num_kv_heads: int) -> int:
    """How many programs share the partitions of a place: enough to fill a GPU, and none walks far."""
    wanted = max(-(-_MIN_PROGRAMS // (num_slots * num_kv_heads)), -(-num_partitions // _MAX_WALK))
    return min(num_partitions, wanted)


def attend_partitions(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    short: ShortSpans,
    scales: Scales,
    *,
    num_splits: int,
) -> PartitionSums:
    """One program a place of groups, split and key head; blocks hold a power of two of tokens, from 16 on,
    that divides a partition. A program takes every `num_splits`th partition.
    """
    for tensor in (query, keys, values, short.block_tables):
        assert tensor.is_contiguous(), "programs count elements from the first"
    shape, num_kv_heads = HeadShape.of(query, keys), keys.shape[1]
    assert shape.block_size % 16 == 0, "16 slots of a block are read at once"
    assert PARTITION_TOKENS % shape.block_size == 0, "a partition is whole blocks"
    launch = launch_of_partitions(shape, find_capability(query.device))
    num_partitions, num_slots = short.counts.shape
    size = (num_partitions, num_slots, query.shape[1])
    maxima, sums = (query.new_empty(size, dtype=torch.float32) for _ in range(2))
    outs = query.new_empty((*size, shape.head_dim), dtype=torch.float32)
    _partition_attention_kernel[(num_slots, num_splits, num_kv_heads)](
        query,
        keys,
        values,
        short.block_tables,
        short.tokens,
        short.sequences,
        short.visible,
        short.members,
        short.counts,
        short.walks,
        maxima,
        sums,
        outs,
        scales.powers,
        scales.values,
        num_slots,
        short.block_tables.shape[1],
        KV_HEADS=num_kv_heads,
        GROUP=shape.group,
        ROWS=launch.rows,
        HEAD_DIM=shape.head_dim,
        DIMS=shape.dims,
        BLOCK_SIZE=shape.block_size,
        PARTITION=PARTITION_TOKENS,
        TILE=launch.tile,
        PRECISION=score_precision(query.dtype),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return PartitionSums(maxima, sums, outs)


@triton.jit(do_not_specialize=["num_slots", "max_blocks"])
def _partition_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    tokens_ptr,
    sequences_ptr,
    visible_ptr,
    members_ptr,
    counts_ptr,
    walks_ptr,
    maxima_ptr,
    sums_ptr,
    outs_ptr,
    score_scale,
    value_scale,
    num_slots,
    max_blocks,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,  # a power of two, at least GROUP and 16
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,  # a power of two, at least HEAD_DIM and 16
    BLOCK_SIZE: tl.constexpr,  # a power of two, at least 16
    PARTITION: tl.constexpr,
    TILE: tl.constexpr,  # divides PARTITION
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """Every so many partitions of one place, for the groups that begin there."""
    place, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(2)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    head, has_dim = kv_head * GROUP + rows % GROUP, dims < HEAD_DIM
    wide_slots = num_slots.to(tl.int64)
    for partition in range(tl.program_id(1), tl.load(walks_ptr + place), tl.num_programs(1)):
        first = partition * wide_slots + place
        count = tl.load(counts_ptr + first)
        if count > 0:
            inside = rows // GROUP < count
            slots = tl.load(members_ptr + first + rows // GROUP, mask=inside, other=0)  # [ROWS]
            visible = tl.load(visible_ptr + slots, mask=inside, other=0)
            tokens = tl.load(tokens_ptr + slots, mask=inside, other=0).to(tl.int64)
            query_places = (tokens * (KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + dims[None, :]
            is_query = inside[:, None] & has_dim[None, :]
            query = tl.load(query_ptr + query_places, mask=is_query, other=0.0)  # [ROWS, DIMS]
            sequence = tl.load(sequences_ptr + tl.load(members_ptr + first)).to(tl.int64)
            table_ptr = tables_ptr + sequence * max_blocks  # any member's, for they have the same blocks here
            start = partition * PARTITION
            end = tl.minimum(tl.max(visible, axis=0), start + PARTITION)
            pool = keys_ptr, values_ptr, table_ptr, kv_head
            folded = fold_nothing(ROWS, DIMS)
            for tile in range(start, end, TILE):
                seen = tile + tl.arange(0, TILE)
                scores, bases = score_tile(query, pool, seen, end, KV_HEADS, HEAD_DIM, BLOCK_SIZE, PRECISION)
                scores *= score_scale
                scores = tl.where(seen[None, :] < visible[:, None], scores, float("-inf"))
                folded = fold_tile(
                    scores, folded, query, pool, bases, seen, end, HEAD_DIM, BLOCK_SIZE, PRECISION
                )
            running_max, running_sum, acc = folded
            sum_places = (partition * wide_slots + slots) * (KV_HEADS * GROUP) + head
            tl.store(maxima_ptr + sum_places, running_max, mask=inside)
            tl.store(sums_ptr + sum_places, running_sum, mask=inside)
            out_places = sum_places[:, None] * HEAD_DIM + dims[None, :]
            tl.store(outs_ptr + out_places, acc * value_scale, mask=is_query)


def attend_partitions_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    short: ShortSpans,
    scales: Scales,
) -> PartitionSums:
    """The same in plain torch, slot by slot, whoever it shares a partition with. Zeros where nothing is."""
    group, block_size = query.shape[1] // keys.shape[1], keys.shape[3]
    num_partitions, num_slots = short.counts.shape
    size = (num_partitions, num_slots, query.shape[1])
    sums = PartitionSums(torch.zeros(size), torch.zeros(size), torch.zeros(*size, query.shape[2]))
    for slot, num_visible in enumerate(short.visible.tolist()):
        table = short.block_tables[short.sequences[slot]].long()
        for start in range(0, num_visible, PARTITION_TOKENS):
            seen = torch.arange(start, min(start + PARTITION_TOKENS, num_visible))
            blocks, places = table[seen // block_size], seen % block_size
            key, value = (
                heads.float().repeat_interleave(group, dim=1)  # [seen, num_heads, head_dim]
                for heads in (keys[blocks, :, :, places], values[blocks, :, places])
            )
            scores = torch.einsum("hd,shd->hs", query[short.tokens[slot]].float(), key) * scales.powers
            weights = (scores - scores.amax(dim=1, keepdim=True)).exp2()
            place = start // PARTITION_TOKENS, slot
            sums.maxima[place], sums.sums[place] = scores.amax(dim=1), weights.sum(dim=1)
            sums.outs[place] = torch.einsum("hs,shd->hd", weights, value) * scales.values
    return sums
