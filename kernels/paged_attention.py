"""Causal attention of ragged spans over paged keys and values.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(scale * query[t, h] . key[j, h // group])

A span is the last part of its sequence: query token i of a span of n stands at position context_len - n +
i. Its own keys and values are in the pool already. Decoding is a span of one. Slots past a sequence's
context may hold anything; none of it reaches a result.

Sequences of one leader hold the same keys and values in a partition (see `kernels.partitions`), which may be
read once for all of them. Leaders change no result by more than the order of sums does, on a CPU by nothing.
"""

import torch

from kernels.attention_tiles import HeadShape, Scales
from kernels.attention_work import AttentionWork, plan_attention
from kernels.byte_cache import read_heads
from kernels.merge_partitions import merge_partitions
from kernels.partition_attention import attend_partitions, choose_splits
from kernels.pool_types import check_pool_type, find_capability
from kernels.span_attention import attend_spans

__all__ = ["attend", "paged_attention", "paged_attention_reference"]


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
    """Plans and attends at once, for a GPU. Layers of one step had better plan once."""
    shape = HeadShape.of(query, keys)
    work = plan_attention(block_tables, context_lens, cu_seqlens_q, leaders, len(query), shape)
    return attend(query, keys, values, work, Scales(scale))


def attend(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    work: AttentionWork,
    scales: Scales,
) -> torch.Tensor:  # as query; padding's rows hold anything
    """Short spans by partitions, which are then joined, and long ones by tiles. Raises ValueError for pools
    of a type that this GPU does not read.
    """
    check_pool_type(keys.dtype, find_capability(query.device))
    out = torch.empty_like(query)
    num_partitions, num_slots = work.short.counts.shape
    splits = choose_splits(num_partitions, num_slots, keys.shape[1])
    parts = attend_partitions(query, keys, values, work.short, scales, num_splits=splits)
    merge_partitions(parts, work.short, out)
    if len(work.long.sequences):
        attend_spans(query, keys, values, work.long, scales, out)
    return out


def paged_attention_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    leaders: torch.Tensor,  # [num_sequences, num_partitions] int32
    scale: float,
) -> torch.Tensor:  # as query
    """The same in plain torch: slow, obvious, and the definition of correct."""
    out = torch.empty_like(query)
    group, block_size = query.shape[1] // keys.shape[1], keys.shape[3]
    starts = cu_seqlens_q.tolist()
    for sequence, length in enumerate(context_lens.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        blocks = block_tables[sequence, : -(-length // block_size)].long()
        if keys.dtype == torch.int8:  # see `kernels.byte_cache`
            key = read_heads(keys[blocks], query.shape[2], is_transposed=True)
            value = read_heads(values[blocks], query.shape[2], is_transposed=False)
        else:
            key, value = keys[blocks].mT.float(), values[blocks].float()
        # [num_blocks, num_kv_heads, block_size, head_dim] each; now [num_heads, length, head_dim].
        key, value = (
            heads.transpose(0, 1).flatten(1, 2)[:, :length].repeat_interleave(group, dim=0)
            for heads in (key, value)
        )
        scores = query[start:end].float().transpose(0, 1) @ key.transpose(1, 2) * scale
        positions = torch.arange(length - (end - start), length, device=query.device)
        hidden = torch.arange(length, device=query.device) > positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[start:end] = (weights @ value).transpose(0, 1).to(out.dtype)
    return out
