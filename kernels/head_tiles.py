"""What the kernels share that rotate heads and store them: a tile of one token's heads, as two halves.

Heads are counted as in `qkv`: those of queries, then of keys; a key's value lies num_kv_heads further on. See
docs/data-layout.md. A tile may hold heads of both kinds, and heads that there are not.
"""

import torch
import triton
import triton.language as tl

__all__ = [
    "load_halves",
    "norm_scale",
    "norm_weight",
    "rotate",
    "rotate_reference",
    "store_keys",
    "store_queries",
    "store_values",
    "tile_of",
]

TILE_PAIRS = 512  # of one program of one warp: loads are 16 bytes wide, on warps of 64 threads too


def tile_of(head_dim: int, num_heads: int) -> tuple[int, int]:
    """Heads and pairs of dimensions of a tile, powers of two."""
    pairs = triton.next_power_of_2(head_dim // 2)
    return min(max(1, TILE_PAIRS // pairs), triton.next_power_of_2(num_heads)), pairs


@triton.jit
def load_halves(head_ptr, half, pairs, inside):
    """float32 [HEADS, PAIRS] twice. head_ptr: [HEADS, 1], where each head begins."""
    first = tl.load(head_ptr + pairs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(head_ptr + half + pairs, mask=inside, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def norm_scale(first, second, half, eps):
    """One over each head's root mean square: [HEADS, 1]."""
    squares = tl.sum(first * first + second * second, axis=1) / (2 * half)
    return tl.rsqrt(squares + eps)[:, None]


@triton.jit
def norm_weight(query_norm_ptr, key_norm_ptr, is_query, pairs, half):
    """The weights of each head's pairs, [HEADS, PAIRS]. is_query: [HEADS, 1]."""
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
def store_keys(keys_ptr, first, second, slot, kv_heads, pairs, inside, num_kv_heads, half, block_size):
    """[num_blocks, num_kv_heads, head_dim, block_size] takes the halves as they are. slot: int64."""
    head_ptr = keys_ptr + (slot // block_size * num_kv_heads + kv_heads) * 2 * half * block_size
    target = head_ptr + pairs * block_size + slot % block_size
    tl.store(target, first.to(keys_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half * block_size, second.to(keys_ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_values(values_ptr, first, second, slot, kv_heads, pairs, inside, num_kv_heads, half, block_size):
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
