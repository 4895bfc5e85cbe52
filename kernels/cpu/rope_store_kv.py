"""Rotation by position and the scatter of keys and values into their slots, compiled for the CPU.

Where numbers lie in a block is said in `pairs`. What `rope_store_token` reads may be float32 or bfloat16's
bits; it rounds once, to what it writes.
"""

from typing import Any

import numba
import torch

from kernels.cpu.arrays import as_array
from kernels.cpu.byte_blocks import head_bytes, store_key_head, store_value_head
from kernels.cpu.leaf import leaf
from kernels.cpu.one_of import one_of
from kernels.cpu.pairs import column_width, store_key, store_value
from kernels.cpu.vectors import (
    LANES,
    load,
    load_scalar,
    multiply,
    multiply_add,
    store,
    store_scalar,
    subtract,
)

__all__ = ["rope_store_kv", "store_token"]


def rope_store_kv(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """As `rope_store_kv_reference`."""
    num_kv_heads, head_dim = keys.shape[1], 2 * cosines.shape[1]
    query = torch.empty(len(qkv), qkv.shape[1] // head_dim - 2 * num_kv_heads, head_dim, dtype=qkv.dtype)
    is_bytes = keys.dtype == torch.int8
    store_all = _store_bytes if is_bytes else _store_numbers
    store_all(
        as_array(qkv.float() if is_bytes else qkv),
        as_array(cosines),
        as_array(sines),
        as_array(keys),
        as_array(values),
        slot_mapping.numpy(),
        as_array(query),
    )
    return query


@leaf
def rope_store_token(token, qkv, cosines, sines, keys, values, slot, query):
    """One token's rotated queries into `query`, and its key and value into a slot, unless that is -1.

    `qkv` is [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], `query` [num_tokens, num_heads,
    head_dim], `cosines` and `sines` [num_tokens, head_dim / 2] float32.
    """
    num_kv_heads, head_dim, block_size = keys.shape[1], keys.shape[2], keys.shape[3]
    num_heads, angle = query.shape[1], token * (head_dim // 2)
    start = token * qkv.shape[1]
    _rotate_queries(token, qkv, cosines, sines, query)
    if slot < 0:
        return
    block, place = slot // block_size, slot % block_size
    for head in range(num_kv_heads):
        base = (block * num_kv_heads + head) * head_dim * block_size
        key_start = start + (num_heads + head) * head_dim
        key_place = base + place * column_width(keys)
        _rotate_key(qkv, key_start, cosines, sines, angle, head_dim, keys, key_place, block_size)
        value_start = key_start + num_kv_heads * head_dim
        _store_head(qkv, value_start, head_dim, values, base, place)


@leaf
def round_store_token(token, qkv, cosines, sines, keys, values, slot, query):
    """As `rope_store_token`, into blocks of 8 bits. The key in `qkv` is rotated in its place.

    `head_dim` is a multiple of LANES.
    """
    num_kv_heads, block_size = keys.shape[1], keys.shape[3]
    num_heads, head_dim = query.shape[1], query.shape[2]
    _rotate_queries(token, qkv, cosines, sines, query)
    if slot < 0:
        return
    block, place, angle = slot // block_size, slot % block_size, token * (head_dim // 2)
    for head in range(num_kv_heads):
        base = (block * num_kv_heads + head) * head_bytes(head_dim, block_size)
        key = token * qkv.shape[1] + (num_heads + head) * head_dim
        _rotate_query(qkv, key, cosines, sines, angle, head_dim, qkv, key)
        store_key_head(qkv, key, head_dim, keys, base, place, block_size)
        store_value_head(qkv, key + num_kv_heads * head_dim, head_dim, values, base, place, block_size)


# By way of attention: into blocks of numbers as they are, or of 8 bits.
store_token = one_of(*[rope_store_token] * 3, *[round_store_token] * 2)


@leaf
def _rotate_queries(token, qkv, cosines, sines, query):
    num_heads, head_dim = query.shape[1], query.shape[2]
    start, angle = token * qkv.shape[1], token * (head_dim // 2)
    for head in range(num_heads):
        target = (token * num_heads + head) * head_dim
        _rotate_query(qkv, start + head * head_dim, cosines, sines, angle, head_dim, query, target)


@leaf
def _rotate(source, start, cosines, sines, angle, half, pair):
    """LANES pairs of one head, from pair `pair` on: their first and their second numbers."""
    cos, sin = load(cosines, angle + pair), load(sines, angle + pair)
    first, second = load(source, start + pair), load(source, start + half + pair)
    turned = subtract(multiply(first, cos), multiply(second, sin))
    return turned, multiply_add(second, cos, multiply(first, sin))


@leaf
def _rotate_pair(source, start, cosines, sines, angle, half, pair):
    """As `_rotate`, of one pair."""
    cos, sin = load_scalar(cosines, angle + pair), load_scalar(sines, angle + pair)
    first, second = load_scalar(source, start + pair), load_scalar(source, start + half + pair)
    return first * cos - second * sin, second * cos + first * sin


@leaf
def _rotate_query(source, start, cosines, sines, angle, head_dim, query, target):
    half = head_dim // 2
    whole = half // LANES * LANES
    for pair in range(0, whole, LANES):
        first, second = _rotate(source, start, cosines, sines, angle, half, pair)
        store(query, target + pair, first)
        store(query, target + half + pair, second)
    for pair in range(whole, half):
        one, other = _rotate_pair(source, start, cosines, sines, angle, half, pair)
        store_scalar(query, target + pair, one)
        store_scalar(query, target + half + pair, other)


@leaf
def _rotate_key(source, start, cosines, sines, angle, head_dim, keys, place, block_size):
    half, width = head_dim // 2, column_width(keys)
    whole = half // LANES * LANES if half % width == 0 else 0
    stride = width * block_size
    for pair in range(0, whole, LANES):
        first, second = _rotate(source, start, cosines, sines, angle, half, pair)
        store_key(keys, place + pair * block_size, stride, first)
        store_key(keys, place + (half + pair) * block_size, stride, second)
    for pair in range(whole, half):
        one, other = _rotate_pair(source, start, cosines, sines, angle, half, pair)
        store_scalar(keys, place + pair // width * stride + pair % width, one)
        dim = half + pair
        store_scalar(keys, place + dim // width * stride + dim % width, other)


@leaf
def _store_head(source, start, head_dim, values, base, slot):
    width = column_width(values)
    target = base + slot // width * width * head_dim + slot % width
    whole = head_dim // LANES * LANES
    for dim in range(0, whole, LANES):
        store_value(values, target + dim * width, load(source, start + dim))
    for dim in range(whole, head_dim):
        store_scalar(values, target + dim * width, load_scalar(source, start + dim))


def _compile(store: Any) -> Any:
    @numba.njit(parallel=True, cache=True)
    def store_all(qkv, cosines, sines, keys, values, slot_mapping, query):
        for token in numba.prange(len(qkv)):
            store(token, qkv, cosines, sines, keys, values, int(slot_mapping[token]), query)

    return store_all


_store_numbers, _store_bytes = _compile(rope_store_token), _compile(round_store_token)
