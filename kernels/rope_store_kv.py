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
    load_halves,
    rotate,
    rotate_reference,
    store_keys,
    store_queries,
    store_values,
    tile_of,
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
    for tensor in (qkv, cosines, sines, keys, values):
        assert tensor.is_contiguous(), "programs count elements from the first"
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    HEADS, PAIRS = tile_of(head_dim, num_heads + num_kv_heads)
    grid = (len(qkv), triton.cdiv(num_heads + num_kv_heads, HEADS))
    _rope_store_kv_kernel[grid](
        qkv,
        cosines,
        sines,
        keys,
        values,
        slot_mapping,
        query,
        num_heads,
        num_kv_heads,
        head_dim // 2,
        block_size,
        HEADS=HEADS,
        PAIRS=PAIRS,
        num_warps=1,
    )
    return query


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
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
    pairs = tl.arange(0, PAIRS)[None, :]  # [1, PAIRS]
    inside = (heads < num_heads + num_kv_heads) & (pairs < half)  # the last tile may reach past the keys
    head_ptr = qkv_ptr + (token * (num_heads + 2 * num_kv_heads) + heads) * 2 * half
    first, second = load_halves(head_ptr, half, pairs, inside)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot >= 0) & ((tl.program_id(1) + 1) * HEADS > num_heads):  # the token is stored, and keys are here
        stored = inside & (heads >= num_heads)
        kv_heads = heads - num_heads
        store_keys(keys_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)
        first, second = load_halves(head_ptr + num_kv_heads * 2 * half, half, pairs, stored)
        store_values(values_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)


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
