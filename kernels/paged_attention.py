"""Causal attention of ragged spans over paged keys and values.

out[t, h] = sum of weight[j] * value[j, h // group] over the positions j <= position(t), where

    weight = softmax(scale * query[t, h] . key[j, h // group])

A span is the last part of its sequence: query token i of a span of n stands at position context_len - n + i.
Its own keys and values are in the pool already. Decoding is a span of one. Slots past a sequence's context may
hold anything; none of it reaches a result.
"""

import torch

__all__ = ["paged_attention_reference"]


def paged_attention_reference(
    query: torch.Tensor,  # [num_tokens, num_heads, head_dim]
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    block_tables: torch.Tensor,  # [num_sequences, max_blocks] int32
    context_lens: torch.Tensor,  # [num_sequences] int32
    cu_seqlens_q: torch.Tensor,  # [num_sequences + 1] int32
    scale: float,
) -> torch.Tensor:  # as query
    """The same in plain torch: slow, obvious, and the definition of correct."""
    out = torch.empty_like(query)
    group, block_size = query.shape[1] // keys.shape[1], keys.shape[3]
    starts = cu_seqlens_q.tolist()
    for sequence, length in enumerate(context_lens.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        blocks = block_tables[sequence, : -(-length // block_size)].long()
        key = keys[blocks].permute(1, 0, 3, 2).flatten(1, 2)[:, :length]  # [num_kv_heads, length, head_dim]
        value = values[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
        key, value = (heads.float().repeat_interleave(group, dim=0) for heads in (key, value))
        scores = query[start:end].float().transpose(0, 1) @ key.transpose(1, 2) * scale
        positions = torch.arange(length - (end - start), length, device=query.device)
        hidden = torch.arange(length, device=query.device) > positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[start:end] = (weights @ value).transpose(0, 1).to(out.dtype)
    return out
