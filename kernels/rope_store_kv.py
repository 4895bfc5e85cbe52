"""Rotate queries and keys by their positions, and store keys and values in their slots.

For each head of a query or key, with first half a and second half b:

    a', b' = a * cos - b * sin, b * cos + a * sin

Slot s is place s % block_size of block s // block_size. Nothing else of the pool is written.
"""

import torch

__all__ = ["rope_store_kv_reference"]


def rope_store_kv_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    cosines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    sines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """The same in plain torch."""
    _, num_kv_heads, head_dim, block_size = keys.shape
    heads = qkv.view(len(qkv), -1, head_dim)
    rotated, value = heads[:, :-num_kv_heads].float(), heads[:, -num_kv_heads:]
    first, second = rotated.chunk(2, dim=-1)
    cos, sin = cosines[:, None], sines[:, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv.dtype)
    query, key = rotated[:, :-num_kv_heads].contiguous(), rotated[:, -num_kv_heads:]
    stored = slot_mapping >= 0
    slots = slot_mapping[stored].long()
    block, place = slots // block_size, slots % block_size
    keys[block, :, :, place] = key[stored]
    values[block, :, place] = value[stored]
    return query
