"""Norm each head of queries and keys, rotate them by their positions, and store keys and values.

x = x / sqrt(mean(x^2) + eps) * weight     for each head of a query or key, with the weights of its kind

and then as `kernels.rope_store_kv` has it. What is normed is rotated before it is rounded, once.
"""

import torch
import triton
import triton.language as tl

from kernels.head_tiles import (
    Norms,
    launch_heads,
    load_halves,
    norm_halves,
    open_heads,
    rotate,
    rotate_reference,
    store_kv,
    store_queries,
)
from kernels.rms_norm import rms_norm_reference

__all__ = ["norm_heads_reference", "norm_rope_store_kv", "norm_rope_store_kv_reference"]


def norm_rope_store_kv(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values
    norms: Norms,  # of queries and of keys, [head_dim]; eps
    angles: tuple[torch.Tensor, torch.Tensor],  # cosines, sines: [num_tokens, head_dim / 2] float32
    keys: torch.Tensor,  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: torch.Tensor,  # [num_blocks, num_kv_heads, block_size, head_dim]
    slot_mapping: torch.Tensor,  # [num_tokens] int32; -1 marks padding, which is not stored
) -> torch.Tensor:  # [num_tokens, num_heads, head_dim], the rotated queries, as qkv
    """One program a token and few heads; a key's program moves its value as well."""
    return launch_heads(_norm_rope_store_kv_kernel, qkv, norms, angles, (keys, values), slot_mapping)


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
    token, heads, pairs, inside, head_ptr = open_heads(qkv_ptr, num_heads, num_kv_heads, half, HEADS, PAIRS)
    first, second = load_halves(head_ptr, half, pairs, inside)
    is_query = heads < num_heads
    first, second = norm_halves(first, second, query_norm_ptr, key_norm_ptr, eps, is_query, pairs, half)
    first, second = rotate(first, second, cosines_ptr, sines_ptr, token, pairs, half)
    store_queries(query_ptr, first, second, token, heads, pairs, num_heads, half)
    store_kv(keys_ptr, values_ptr, slots_ptr, head_ptr, first, second, token, heads, pairs,
             num_heads, num_kv_heads, half, block_size)  # fmt: skip


def norm_heads_reference(
    qkv: torch.Tensor,  # [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]
    norms: Norms,  # of queries and of keys, [head_dim]; eps
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
    norms: Norms,  # of queries and of keys, [head_dim]; eps
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
