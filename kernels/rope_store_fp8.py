"""Rotate, and norm before if the model does, and store keys and values as floats of 8 bits (e4m3).

stored = round(clamp(x / scale, -limit, limit))     with one scale for keys and one for values

All else is as `kernels.rope_store_kv` and `kernels.norm_rope_store_kv` have it. Limit is the greatest number
of the type, which is the chip's (see `kernels.pool_types`): 448 of e4m3fn, 240 of e4m3fnuz.
"""

import torch
import triton
import triton.language as tl

from kernels.head_tiles import (
    load_halves,
    norm_scale,
    norm_weight,
    rotate,
    rotate_reference,
    store_keys,
    store_queries,
    store_values,
    tile_of,
)
from kernels.norm_rope_store_kv import norm_heads_reference

__all__ = ["norm_rope_store_fp8", "rope_store_fp8", "rope_store_fp8_reference"]

Norms = tuple[torch.Tensor, torch.Tensor, float]
Pool = tuple[torch.Tensor, torch.Tensor, float, float]


def rope_store_fp8(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: Pool,  # keys, values as `rope_store_kv` has them, of the chip's type; key's scale, value's scale
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    return _launch(_rope_store_fp8_kernel, (qkv,), (qkv, *angles), pool, slot_mapping)


def norm_rope_store_fp8(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: Norms,  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: Pool,  # as `rope_store_fp8` has it
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    return _launch(_norm_rope_store_fp8_kernel, (qkv, *norms), (qkv, *norms[:2], *angles), pool, slot_mapping)


def _launch(kernel, leading, tensors, pool: Pool, slot_mapping: torch.Tensor) -> torch.Tensor:
    """`leading` are the kernel's first arguments; the last two of `tensors` are the angles'."""
    keys, values, key_scale, value_scale = pool
    qkv = tensors[0]
    for tensor in (*tensors, keys, values):
        assert tensor.is_contiguous(), "programs count elements from the first"
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    HEADS, PAIRS = tile_of(head_dim, num_heads + num_kv_heads)
    kernel[(len(qkv), triton.cdiv(num_heads + num_kv_heads, HEADS))](
        *leading,
        *tensors[-2:],
        keys,
        values,
        key_scale,
        value_scale,
        slot_mapping,
        query,
        num_heads,
        num_kv_heads,
        head_dim // 2,
        block_size,
        HEADS=HEADS,
        PAIRS=PAIRS,
        LIMIT=torch.finfo(keys.dtype).max,
        num_warps=1,
    )
    return query


@triton.jit
def _in_range(x, scale, LIMIT: tl.constexpr):
    return tl.minimum(tl.maximum(tl.div_rn(x, scale), -LIMIT), LIMIT)


@triton.jit
def _store(
    head_ptr,
    keys_ptr,
    values_ptr,
    key_scale,
    value_scale,
    slot,
    first,
    second,
    heads,
    pairs,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    LIMIT: tl.constexpr,
):
    """Keys from the rotated halves, and their values from where they lie."""
    kv_heads = heads - num_heads
    stored = (kv_heads >= 0) & (kv_heads < num_kv_heads) & (pairs < half)  # the others are queries
    first, second = _in_range(first, key_scale, LIMIT), _in_range(second, key_scale, LIMIT)
    store_keys(keys_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)
    first, second = load_halves(head_ptr + num_kv_heads * 2 * half, half, pairs, stored)
    first, second = _in_range(first, value_scale, LIMIT), _in_range(second, value_scale, LIMIT)
    store_values(values_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)


@triton.jit
def _rope_store_fp8_kernel(
    qkv_ptr,
    cosines_ptr,
    sines_ptr,
    keys_ptr,
    values_ptr,
    key_scale,
    value_scale,
    slots_ptr,
    query_ptr,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
    LIMIT: tl.constexpr,
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
        _store(head_ptr, keys_ptr, values_ptr, key_scale, value_scale, slot, first, second, heads, pairs,
               num_heads, num_kv_heads, half, block_size, LIMIT)  # fmt: skip


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
    key_scale,
    value_scale,
    slots_ptr,
    query_ptr,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
    LIMIT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
    pairs = tl.arange(0, PAIRS)[None, :]  # [1, PAIRS]
    inside = (heads < num_heads + num_kv_heads) & (pairs < half)  # the last tile may reach past the keys
    head_ptr = qkv_ptr + (token * (num_heads + 2 * num_kv_heads) + heads) * 2 * half
    first, second = load_halves(head_ptr, half, pairs, inside)
    scale = norm_scale(first, second, half, eps)
    first *= scale * norm_weight(query_norm_ptr, key_norm_ptr, heads < num_heads, pairs, half)
    second *= scale * norm_weight(query_norm_ptr + half, key_norm_ptr + half, heads < num_heads, pairs, half)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot >= 0) & ((tl.program_id(1) + 1) * HEADS > num_heads):  # the token is stored, and keys are here
        _store(head_ptr, keys_ptr, values_ptr, key_scale, value_scale, slot, first, second, heads, pairs,
               num_heads, num_kv_heads, half, block_size, LIMIT)  # fmt: skip


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
