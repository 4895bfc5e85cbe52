"""Rotate queries and keys by their positions, and store keys and values in their slots.

For each head of a query or key, with first half a and second half b:

    a', b' = a * cos - b * sin, b * cos + a * sin

Slot s is place s % block_size of block s // block_size. Nothing else of the pool is written.
"""

import torch
import triton
import triton.language as tl

from kernels.byte_cache import write_heads
from kernels.head_tiles import (
    launch_heads,
    load_halves,
    open_heads,
    rotate,
    rotate_reference,
    store_kv,
    store_queries,
)

__all__ = ["rope_store_kv", "rope_store_kv_reference"]


def rope_store_kv(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    cosines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    sines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    return launch_heads(_rope_store_kv_kernel, qkv, (), (cosines, sines), (keys, values), slot_mapping)


@triton.jit
def _rope_store_kv_kernel(
    qkv_ptr,
    cosines_ptr,
    sines_ptr,
    keys_ptr,
    values_ptr,
    slots_ptr,
    query_ptr,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
):
    token, heads, pairs, inside, head_ptr = open_heads(qkv_ptr, num_heads, num_kv_heads, half, HEADS, PAIRS)
    first, second = load_halves(head_ptr, half, pairs, inside)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    store_kv(keys_ptr, values_ptr, slots_ptr, head_ptr, first, second, token, heads, pairs,
             num_heads, num_kv_heads, half, block_size)  # fmt: skip


def rope_store_kv_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    cosines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    sines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """The same in plain torch; into blocks of 8 bits as well, see `kernels.byte_cache`."""
    num_kv_heads, head_dim, block_size = keys.shape[1], 2 * cosines.shape[1], keys.shape[3]
    heads = qkv.view(len(qkv), -1, head_dim)
    rotated, value = heads[:, :-num_kv_heads].float(), heads[:, -num_kv_heads:]
    rotated = rotate_reference(rotated, cosines, sines).to(qkv.dtype)
    query, key = rotated[:, :-num_kv_heads].contiguous(), rotated[:, -num_kv_heads:]
    stored = slot_mapping >= 0
    slots = slot_mapping[stored].long()
    block, place = slots // block_size, slots % block_size
    if keys.dtype == torch.int8:
        write_heads(key[stored], keys, block, place, is_transposed=True)
        write_heads(value[stored], values, block, place, is_transposed=False)
        return query
    keys[block, :, :, place] = key[stored]
    values[block, :, place] = value[stored]
    return query
