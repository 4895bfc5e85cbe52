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
import triton
import triton.language as tl

from kernels.byte_cache import read_heads
from kernels.partitions import PARTITION_TOKENS
from kernels.shared_attention import attend_shared

__all__ = ["paged_attention", "paged_attention_reference"]


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
    """One program a query token and key head, after those of `kernels.shared_attention`. Blocks hold a power
    of two of tokens.
    """
    for tensor in (query, keys, values, block_tables):
        assert tensor.is_contiguous(), "programs count elements from the first"
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    tokens = torch.arange(num_tokens, dtype=torch.int32, device=query.device)
    sequences = torch.searchsorted(cu_seqlens_q[1:], tokens, right=True, out_int32=True)
    visible = (context_lens - cu_seqlens_q[1:])[sequences] + tokens + 1
    out = torch.empty_like(query)
    shared = attend_shared(query, keys, values, block_tables, sequences, visible, leaders, scale)
    _paged_attention_kernel[(num_tokens, num_kv_heads)](
        query,
        keys,
        values,
        block_tables,
        sequences,
        visible,
        *shared,
        out,
        scale,
        num_tokens,
        len(shared.is_done),
        num_kv_heads,
        num_heads // num_kv_heads,
        head_dim,
        block_tables.shape[1],
        BLOCK_SIZE=block_size,
        GROUP=triton.next_power_of_2(num_heads // num_kv_heads),
        DIMS=triton.next_power_of_2(head_dim),
        PARTITION=max(PARTITION_TOKENS, block_size),
    )
    return out


@triton.jit
def _paged_attention_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    sequences_ptr,
    visible_ptr,
    is_done_ptr,
    maxima_ptr,
    sums_ptr,
    outs_ptr,
    out_ptr,
    scale,
    num_tokens,
    num_partitions,
    num_kv_heads,
    group,
    head_dim,
    max_blocks,
    BLOCK_SIZE: tl.constexpr,  # a power of two
    GROUP: tl.constexpr,  # a power of two, at least group
    DIMS: tl.constexpr,  # a power of two, at least head_dim
    PARTITION: tl.constexpr,
):
    """A token's context, but for what a group did of it, which is joined by its maxima and sums."""
    token, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_visible = tl.load(visible_ptr + token)
    table_ptr = tables_ptr + tl.load(sequences_ptr + token).to(tl.int64) * max_blocks
    heads, dims, places = tl.arange(0, GROUP), tl.arange(0, DIMS), tl.arange(0, BLOCK_SIZE)
    rows = (token * num_kv_heads + kv_head) * group + heads
    query_inside = (heads < group)[:, None] & (dims < head_dim)[None, :]
    query_places = rows[:, None] * head_dim + dims[None, :]
    query = tl.load(query_ptr + query_places, mask=query_inside, other=0.0).to(tl.float32) * scale
    running_max = tl.full((GROUP,), float("-inf"), tl.float32)
    running_sum = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, DIMS), tl.float32)
    for partition in range(tl.cdiv(num_visible, PARTITION)):
        place = partition * num_tokens + token
        is_done = tl.load(is_done_ptr + place, mask=partition < num_partitions, other=0).to(tl.int1)
        start = partition * PARTITION
        own_end = tl.where(is_done, start, tl.minimum(start + PARTITION, num_visible))
        for own in range(start, own_end, BLOCK_SIZE):
            block = tl.load(table_ptr + own // BLOCK_SIZE).to(tl.int64)
            base = (block * num_kv_heads + kv_head) * head_dim * BLOCK_SIZE
            seen = own + places < num_visible  # later slots may hold anything, NaN too: they are not loaded
            key = tl.load(
                keys_ptr + base + dims[:, None] * BLOCK_SIZE + places[None, :],
                mask=(dims < head_dim)[:, None] & seen[None, :],
                other=0.0,
            ).to(tl.float32)  # [DIMS, BLOCK_SIZE]
            value = tl.load(
                values_ptr + base + places[:, None] * head_dim + dims[None, :],
                mask=seen[:, None] & (dims < head_dim)[None, :],
                other=0.0,
            ).to(tl.float32)  # [BLOCK_SIZE, DIMS]
            scores = tl.sum(query[:, :, None] * key[None, :, :], axis=1)  # [GROUP, BLOCK_SIZE]
            scores = tl.where(seen[None, :], scores, float("-inf"))
            new_max = tl.maximum(running_max, tl.max(scores, axis=1))
            shrink = tl.exp(running_max - new_max)
            weights = tl.exp(scores - new_max[:, None])
            running_sum = running_sum * shrink + tl.sum(weights, axis=1)
            acc = acc * shrink[:, None] + tl.sum(weights[:, :, None] * value[None, :, :], axis=1)
            running_max = new_max
        if is_done:
            part_rows = (place * num_kv_heads + kv_head) * group + heads
            part_max = tl.load(maxima_ptr + part_rows, mask=heads < group, other=0.0)
            part_sum = tl.load(sums_ptr + part_rows, mask=heads < group, other=1.0)
            part_places = part_rows[:, None] * head_dim + dims[None, :]
            part = tl.load(outs_ptr + part_places, mask=query_inside, other=0.0)
            new_max = tl.maximum(running_max, part_max)
            shrink, weight = tl.exp(running_max - new_max), tl.exp(part_max - new_max)
            running_sum = running_sum * shrink + part_sum * weight
            acc = acc * shrink[:, None] + part * weight[:, None]
            running_max = new_max
    out = (acc / running_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + query_places, out, mask=query_inside)


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
