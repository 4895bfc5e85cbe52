"""Rotate queries and keys by their positions, and store keys and values in their slots.

For each head of a query or key, with first half a and second half b:

    a', b' = a * cos - b * sin, b * cos + a * sin

Slot s is place s % block_size of block s // block_size. Nothing else of the pool is written.
"""

import torch
import triton
import triton.language as tl

from kernels.byte_cache import write_heads

__all__ = ["rope_store_kv", "rope_store_kv_reference"]


def rope_store_kv(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    cosines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    sines: torch.Tensor,  # [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and head; a key's program moves its value as well."""
    for tensor in (qkv, cosines, sines, keys, values):
        assert tensor.is_contiguous(), "programs count elements from the first"
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    half = head_dim // 2
    _rope_store_kv_kernel[(len(qkv), num_heads + num_kv_heads)](
        qkv,
        cosines,
        sines,
        keys,
        values,
        slot_mapping,
        query,
        num_heads,
        num_kv_heads,
        half,
        block_size,
        PAIRS=triton.next_power_of_2(half),
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
    PAIRS: tl.constexpr,  # a power of two, at least half
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head_dim = 2 * half
    pairs = tl.arange(0, PAIRS)
    inside = pairs < half
    source = qkv_ptr + (token * (num_heads + 2 * num_kv_heads) + head) * head_dim + pairs
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)  # [PAIRS]
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cosines_ptr + token * half + pairs, mask=inside, other=0.0)
    sin = tl.load(sines_ptr + token * half + pairs, mask=inside, other=0.0)
    turned_first = (first * cos - second * sin).to(query_ptr.dtype.element_ty)
    turned_second = (second * cos + first * sin).to(query_ptr.dtype.element_ty)
    if head < num_heads:
        target = query_ptr + (token * num_heads + head) * head_dim + pairs
        tl.store(target, turned_first, mask=inside)
        tl.store(target + half, turned_second, mask=inside)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        stored = inside & (slot >= 0)
        base = (slot // block_size * num_kv_heads + head - num_heads) * head_dim * block_size
        place = slot % block_size
        target = keys_ptr + base + pairs * block_size + place
        tl.store(target, turned_first, mask=stored)
        tl.store(target + half * block_size, turned_second, mask=stored)
        source += num_kv_heads * head_dim  # from the key to its value
        target = values_ptr + base + place * head_dim + pairs
        tl.store(target, tl.load(source, mask=inside, other=0.0), mask=stored)
        tl.store(target + half, tl.load(source + half, mask=inside, other=0.0), mask=stored)


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
    first, second = rotated.chunk(2, dim=-1)
    cos, sin = cosines[:, None], sines[:, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv.dtype)
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
