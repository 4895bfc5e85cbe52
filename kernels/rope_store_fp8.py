"""Rotate, and norm before if the model does, and store keys and values as floats of 8 bits (e4m3).

stored = round(clamp(x / scale, -limit, limit))     with one scale for keys and one for values

All else is as `kernels.rope_store_kv` and `kernels.norm_rope_store_kv` have it. Limit is the greatest number
of the type, which is the chip's (see `kernels.pool_types`): 448 of e4m3fn, 240 of e4m3fnuz.
"""

import torch
import triton
import triton.language as tl

from kernels.head_tiles import (
    Norms,
    Pool,
    launch_heads,
    load_halves,
    norm_halves,
    open_heads,
    rotate,
    rotate_reference,
    store_kv,
    store_queries,
)
from kernels.norm_rope_store_kv import norm_heads_reference

__all__ = ["norm_rope_store_fp8", "rope_store_fp8", "rope_store_fp8_reference"]


def rope_store_fp8(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: Pool,  # keys, values as `rope_store_kv` has them, of the chip's type; key's scale, value's scale
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    limit = torch.finfo(pool[0].dtype).max
    return launch_heads(_rope_store_fp8_kernel, qkv, (), angles, pool, slot_mapping, LIMIT=limit)


def norm_rope_store_fp8(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: Norms,  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: Pool,  # as `rope_store_fp8` has it
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    limit = torch.finfo(pool[0].dtype).max
    return launch_heads(_norm_rope_store_fp8_kernel, qkv, norms, angles, pool, slot_mapping, LIMIT=limit)


@triton.jit
def _rope_store_fp8_kernel(
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
    key_scale,
    value_scale,
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
    LIMIT: tl.constexpr,
):
    token, heads, pairs, inside, head_ptr = open_heads(qkv_ptr, num_heads, num_kv_heads, half, HEADS, PAIRS)
    first, second = load_halves(head_ptr, half, pairs, inside)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    store_kv(keys_ptr, values_ptr, slots_ptr, head_ptr, first, second, token, heads, pairs,
             num_heads, num_kv_heads, half, block_size, key_scale, value_scale, LIMIT)  # fmt: skip


@triton.jit
def _norm_rope_store_fp8_kernel(
    qkv_ptr,
    query_norm_ptr,
    key_norm_ptr,
    eps,
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
    key_scale,
    value_scale,
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
    LIMIT: tl.constexpr,
):
    token, heads, pairs, inside, head_ptr = open_heads(qkv_ptr, num_heads, num_kv_heads, half, HEADS, PAIRS)
    first, second = load_halves(head_ptr, half, pairs, inside)
    is_query = heads < num_heads
    first, second = norm_halves(first, second, query_norm_ptr, key_norm_ptr, eps, is_query, pairs, half)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    store_kv(keys_ptr, values_ptr, slots_ptr, head_ptr, first, second, token, heads, pairs,
             num_heads, num_kv_heads, half, block_size, key_scale, value_scale, LIMIT)  # fmt: skip


def rope_store_fp8_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: Norms | None,  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: Pool,  # as `rope_store_fp8` has it
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """Both in plain torch."""
    keys, values, key_scale, value_scale = pool
    num_kv_heads, head_dim, block_size = keys.shape[1:]
    heads = qkv.view(len(qkv), -1, head_dim).float()
    if norms is not None:
        heads = norm_heads_reference(qkv, norms, num_kv_heads)
    rotated = rotate_reference(heads[:, :-num_kv_heads], *angles)
    stored = slot_mapping >= 0
    slots = slot_mapping[stored].long()
    block, place = slots // block_size, slots % block_size
    limit = torch.finfo(keys.dtype).max
    key, value = rotated[stored, -num_kv_heads:], heads[stored, -num_kv_heads:]
    # Torch has no scatter of such types, but one of bytes.
    key_bytes = (key / key_scale).clamp(-limit, limit).to(keys.dtype).view(torch.uint8)
    value_bytes = (value / value_scale).clamp(-limit, limit).to(values.dtype).view(torch.uint8)
    keys.view(torch.uint8)[block, :, :, place] = key_bytes
    values.view(torch.uint8)[block, :, place] = value_bytes
    return rotated[:, :-num_kv_heads].to(qkv.dtype).contiguous()
