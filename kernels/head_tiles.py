"""What the kernels share that rotate heads and store them: a tile of one token's heads, as two halves.

Heads are counted as in `qkv`: those of queries, then of keys; a key's value lies num_kv_heads further on. See
docs/data-layout.md. A tile may hold heads of both kinds, and heads that there are not.
"""

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = [
    "Norms",
    "Pool",
    "launch_heads",
    "load_halves",
    "norm_halves",
    "open_heads",
    "rotate",
    "rotate_reference",
    "store_kv",
    "store_queries",
]

Norms = tuple[torch.Tensor, torch.Tensor, float]
Pool = tuple[torch.Tensor, torch.Tensor, float, float]
TILE_PAIRS = 512  # of one program of one warp: loads are 16 bytes wide, on warps of 64 threads too


def launch_heads(
    kernel: Any,
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: Norms | tuple[()],  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    pool: tuple[torch.Tensor, torch.Tensor] | Pool,  # keys, values as `rope_store_kv` has them; their scales
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
    **constants: Any,
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    keys, values, *scales = pool
    for tensor in (qkv, *norms[:2], *angles, keys, values):
        assert tensor.is_contiguous(), "programs count elements from the first"
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    PAIRS = triton.next_power_of_2(head_dim // 2)
    HEADS = min(max(1, TILE_PAIRS // PAIRS), triton.next_power_of_2(num_heads + num_kv_heads))
    kernel[(len(qkv), triton.cdiv(num_heads + num_kv_heads, HEADS))](
        qkv,
        *norms,
        *angles,
        keys,
        values,
        slot_mapping,
        query,
        num_heads,
        num_kv_heads,
        head_dim // 2,
        block_size,
        *scales,
        HEADS=HEADS,
        PAIRS=PAIRS,
        num_warps=1,
        **constants,
    )
    return query


@triton.jit
def open_heads(qkv_ptr, num_heads, num_kv_heads, half, HEADS: tl.constexpr, PAIRS: tl.constexpr):
    """A program's token, int64; its heads, [HEADS, 1], their pairs, [1, PAIRS], and which of both there are;
    where each head begins, [HEADS, 1].
    """
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pairs = tl.arange(0, PAIRS)[None, :]
    inside = (heads < num_heads + num_kv_heads) & (pairs < half)  # the last tile may reach past the keys
    head_ptr = qkv_ptr + (token * (num_heads + 2 * num_kv_heads) + heads) * 2 * half
    return token, heads, pairs, inside, head_ptr


@triton.jit
def load_halves(head_ptr, half, pairs, inside):
    """float32 [HEADS, PAIRS] twice. head_ptr: [HEADS, 1], where each head begins."""
    first = tl.load(head_ptr + pairs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(head_ptr + half + pairs, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def norm_halves(first, second, query_norm_ptr, key_norm_ptr, eps, is_query, pairs, half):
    """Both halves over each head's root mean square, times its kind's weights. is_query: [HEADS, 1]."""
    squares = tl.sum(first * first + second * second, axis=1) / (2 * half)
    scale = tl.rsqrt(squares + eps)[:, None]
    first *= scale * _norm_weight(query_norm_ptr, key_norm_ptr, is_query, pairs, half)
    second *= scale * _norm_weight(query_norm_ptr + half, key_norm_ptr + half, is_query, pairs, half)
    return first, second


@triton.jit
def _norm_weight(query_norm_ptr, key_norm_ptr, is_query, pairs, half):
    """The weights of each head's pairs, [HEADS, PAIRS]."""
    query_weight = tl.load(query_norm_ptr + pairs, mask=pairs < half, other=0.0).to(tl.float32)
    key_weight = tl.load(key_norm_ptr + pairs, mask=pairs < half, other=0.0).to(tl.float32)
    return tl.where(is_query, query_weight, key_weight)


@triton.jit
def rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half):
    """Both halves turned by the token's angles. token: int64."""
    cos = tl.load(cosines_ptr + token * half + pairs, mask=pairs < half, other=0.0)  # [1, PAIRS]
    sin = tl.load(sines_ptr + token * half + pairs, mask=pairs < half, other=0.0)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half):
    """[num_tokens, num_heads, head_dim] takes those heads of the tile that are queries."""
    target = query_ptr + (token * num_heads + heads) * 2 * half + pairs
    inside = (heads < num_heads) & (pairs < half)  # the others are keys
    tl.store(target, first.to(query_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half, second.to(query_ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_kv(
    keys_ptr,
    values_ptr,
    slots_ptr,
    head_ptr,
    first,
    second,
    token,
    heads,
    pairs,
    num_heads,
    num_kv_heads,
    half,
    block_size,
    key_scale=None,
    value_scale=None,
    LIMIT: tl.constexpr = None,
):
    """The token's slot, if it has one, takes those heads of the tile that are keys, and their values from
    where they lie: as they are, or over their scale and within LIMIT if there is one.
    """
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot >= 0) & ((tl.program_id(1) + 1) * heads.shape[0] > num_heads):  # it is stored, and keys are here
        kv_heads = heads - num_heads
        stored = (pairs < half) & (kv_heads >= 0) & (kv_heads < num_kv_heads)  # the others are queries
        first, second = _fit(first, key_scale, LIMIT), _fit(second, key_scale, LIMIT)
        _store_keys(keys_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size)
        first, second = load_halves(head_ptr + num_kv_heads * 2 * half, half, pairs, stored)
        first, second = _fit(first, value_scale, LIMIT), _fit(second, value_scale, LIMIT)
        _store_values(
            values_ptr, first, second, slot, kv_heads, pairs, stored, num_kv_heads, half, block_size
        )


@triton.jit
def _fit(numbers, scale, LIMIT: tl.constexpr):
    if LIMIT is not None:
        numbers = tl.minimum(tl.maximum(tl.div_rn(numbers, scale), -LIMIT), LIMIT)
    return numbers


@triton.jit
def _store_keys(keys_ptr, first, second, slot, kv_heads, pairs, inside, num_kv_heads, half, block_size):
    """[num_blocks, num_kv_heads, head_dim, block_size] takes the halves as they are. slot: int64."""
    head_ptr = keys_ptr + (slot // block_size * num_kv_heads + kv_heads) * 2 * half * block_size
    target = head_ptr + pairs * block_size + slot % block_size
    tl.store(target, first.to(keys_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half * block_size, second.to(keys_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _store_values(values_ptr, first, second, slot, kv_heads, pairs, inside, num_kv_heads, half, block_size):
    """[num_blocks, num_kv_heads, block_size, head_dim] takes the halves as they are. slot: int64."""
    head_ptr = values_ptr + (slot // block_size * num_kv_heads + kv_heads) * 2 * half * block_size
    target = head_ptr + slot % block_size * 2 * half + pairs
    tl.store(target, first.to(values_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half, second.to(values_ptr.dtype.element_ty), mask=inside)


def rotate_reference(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """heads: [num_tokens, num_heads, head_dim] float32; the angles' are [num_tokens, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = cosines[:, None], sines[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
