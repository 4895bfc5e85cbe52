"""Norm each head of queries and keys, rotate them by their positions, and store keys and values.

x = x / sqrt(mean(x^2) + eps) * weight     for each head of a query or key, with the weights of its kind

and then as `kernels.rope_store_kv` has it. What is normed is rotated before it is rounded, once.
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
from kernels.rms_norm import rms_norm_reference

__all__ = ["norm_heads_reference", "norm_rope_store_kv", "norm_rope_store_kv_reference"]


def norm_rope_store_kv(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: tuple[torch.Tensor, torch.Tensor, float],  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    query_norm, key_norm, eps = norms
    for tensor in (qkv, query_norm, key_norm, *angles, keys, values):
        assert tensor.is_contiguous(), "programs count elements from the first"
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    HEADS, PAIRS = tile_of(head_dim, num_heads + num_kv_heads)
    grid = (len(qkv), triton.cdiv(num_heads + num_kv_heads, HEADS))
    _norm_rope_store_kv_kernel[grid](
        qkv,
        query_norm,
        key_norm,
        eps,
        *angles,
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
def _norm_rope_store_kv_kernel(
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
    HEADS: tl.constexpr,  # a power of two
    PAIRS: tl.constexpr,  # a power of two, at least half
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
        stored = inside & (heads >= num_heads)
        kv_heads = heads - num_heads
        store_keys(keys_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)
        first, second = load_halves(head_ptr + num_kv_heads * 2 * half, half, pairs, stored)
        store_values(values_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)


def norm_heads_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
    norms: tuple[torch.Tensor, torch.Tensor, float],  # of queries and of keys, [head_dim]; eps
    num_kv_heads: int,
) -> torch.Tensor:  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim] float32; values as they are
    """The norms alone."""
    query_norm, key_norm, eps = norms
    heads = qkv.view(len(qkv), -1, len(query_norm)).float()
    num_heads = heads.shape[1] - 2 * num_kv_heads
    queries, keys, values = heads.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
    queries = rms_norm_reference(queries, query_norm.float(), eps)
    return torch.cat((queries, rms_norm_reference(keys, key_norm.float(), eps), values), dim=1)


def norm_rope_store_kv_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: tuple[torch.Tensor, torch.Tensor, float],  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """The same in plain torch."""
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    heads = norm_heads_reference(qkv, norms, num_kv_heads)
    rotated = rotate_reference(heads[:, :-num_kv_heads], *angles).to(qkv.dtype)
    stored = slot_mapping >= 0
    slots = slot_mapping[stored].long()
    block, place = slots // block_size, slots % block_size
    keys[block, :, :, place] = rotated[stored, -num_kv_heads:]
    values[block, :, place] = heads[stored, -num_kv_heads:].to(values.dtype)
    return rotated[:, :-num_kv_heads].contiguous()
