"""Rotation by position and the scatter of keys and values into their slots, compiled for the CPU."""

import numba
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.vectors import load_scalar, store_scalar

__all__ = ["rope_store_kv"]


def rope_store_kv(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """As `rope_store_kv_reference`."""
    num_kv_heads, head_dim = keys.shape[1], keys.shape[2]
    query = torch.empty(len(qkv), qkv.shape[1] // head_dim - 2 * num_kv_heads, head_dim, dtype=qkv.dtype)
    _rope_store_kv(
        as_array(qkv),
        as_array(cosines),
        as_array(sines),
        as_array(keys),
        as_array(values),
        slot_mapping.numpy(),
        as_array(query),
    )
    return query


@numba.njit
def _rotate(source, start, cosines, sines, angle, half, target, target_start, stride):
    """One head from `start` on, to elements `stride` apart."""
    for pair in range(half):
        cos, sin = cosines[angle, pair], sines[angle, pair]
        first, second = load_scalar(source, start + pair), load_scalar(source, start + half + pair)
        store_scalar(target, target_start + pair * stride, first * cos - second * sin)
        store_scalar(target, target_start + (half + pair) * stride, second * cos + first * sin)


@numba.njit
def _rope_store_token(token, qkv, cosines, sines, keys, values, slot, query):
    _, num_kv_heads, head_dim, block_size = keys.shape
    num_heads, half = query.shape[1], head_dim // 2
    start = token * qkv.shape[1]
    for head in range(num_heads):
        target = (token * num_heads + head) * head_dim
        _rotate(qkv, start + head * head_dim, cosines, sines, token, half, query, target, 1)
    if slot < 0:
        return
    block, place = slot // block_size, slot % block_size
    for head in range(num_kv_heads):
        base = (block * num_kv_heads + head) * head_dim * block_size
        key_start = start + (num_heads + head) * head_dim
        _rotate(qkv, key_start, cosines, sines, token, half, keys, base + place, block_size)
        value_start = key_start + num_kv_heads * head_dim
        for dim in range(head_dim):
            element = load_scalar(qkv, value_start + dim)
            store_scalar(values, base + place * head_dim + dim, element)


@numba.njit(parallel=True, cache=True)
def _rope_store_kv(qkv, cosines, sines, keys, values, slot_mapping, query):
    for token in numba.prange(len(qkv)):
        _rope_store_token(token, qkv, cosines, sines, keys, values, int(slot_mapping[token]), query)
