"""Rotation and storing by Triton's kernels: plain, normed, and into floats of 8 bits."""

import pytest
import torch

from kernels.norm_rope_store_kv import norm_rope_store_kv, norm_rope_store_kv_reference
from kernels.rope_store_fp8 import norm_rope_store_fp8, rope_store_fp8, rope_store_fp8_reference
from kernels.rope_store_kv import rope_store_kv, rope_store_kv_reference

HEADS = [(6, 2, 32, 16), (3, 3, 24, 1), (9, 3, 96, 16), (32, 8, 128, 16), (1, 1, 16, 32)]
DTYPES = [torch.float32, torch.bfloat16]
NUM_BLOCKS = 5
Heads = tuple[int, int, int, int]
Norms = tuple[torch.Tensor, torch.Tensor, float]


def _step(heads: Heads, dtype: torch.dtype) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
    """What is projected, its angles, and slots: the last of the pool, the first, padding and one between."""
    num_heads, num_kv_heads, head_dim, size = heads
    generator = torch.Generator().manual_seed(8)
    qkv = torch.randn(4, (num_heads + 2 * num_kv_heads) * head_dim, generator=generator).to(dtype)
    angles = torch.rand(4, head_dim // 2, generator=generator) * 100
    slots = torch.tensor([NUM_BLOCKS * size - 1, 0, -1, size], dtype=torch.int32)
    return qkv, (angles.cos(), angles.sin()), slots


def _norms(heads: Heads, dtype: torch.dtype) -> Norms:
    generator = torch.Generator().manual_seed(9)
    query, key = torch.randn(2, heads[2], generator=generator).to(dtype)
    return query, key, 1e-5


def _pool(heads: Heads, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    _, num_kv_heads, head_dim, size = heads
    keys = torch.full((NUM_BLOCKS, num_kv_heads, head_dim, size), torch.nan).to(dtype)
    return keys, keys.transpose(2, 3).contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_heads_are_rotated_and_stored_as_the_reference_has_it(heads: Heads, dtype: torch.dtype) -> None:
    qkv, angles, slots = _step(heads, dtype)
    pool, expected = _pool(heads, dtype), _pool(heads, dtype)

    query = rope_store_kv(qkv, *angles, *pool, slots)

    torch.testing.assert_close(query, rope_store_kv_reference(qkv, *angles, *expected, slots))
    torch.testing.assert_close(pool, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_heads_are_normed_before_they_are_rotated(heads: Heads, dtype: torch.dtype) -> None:
    qkv, angles, slots = _step(heads, dtype)
    norms = _norms(heads, dtype)
    pool, expected = _pool(heads, dtype), _pool(heads, dtype)

    query = norm_rope_store_kv(qkv, norms, angles, *pool, slots)

    torch.testing.assert_close(query, norm_rope_store_kv_reference(qkv, norms, angles, *expected, slots))
    torch.testing.assert_close(pool, expected, equal_nan=True)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_eight_bits_are_stored_as_the_reference_has_it_but_for_rounding(
    heads: Heads, dtype: torch.dtype, is_normed: bool
) -> None:
    qkv, angles, slots = _step(heads, dtype)
    pool, expected = _pool(heads, torch.float8_e4m3fn), _pool(heads, torch.float8_e4m3fn)
    norms = _norms(heads, dtype) if is_normed else None

    if norms is not None:
        query = norm_rope_store_fp8(qkv, norms, angles, (*pool, 0.004, 0.5), slots)
    else:
        query = rope_store_fp8(qkv, angles, (*pool, 0.004, 0.5), slots)

    torch.testing.assert_close(
        query, rope_store_fp8_reference(qkv, norms, angles, (*expected, 0.004, 0.5), slots)
    )
    for found, wanted in zip(pool, expected, strict=True):
        # The interpreter breaks ties another way, and loses what rounding up carries to the next power.
        distance = (found.view(torch.uint8).int() - wanted.view(torch.uint8).int()).abs()
        assert distance.max() <= 8
        assert (distance > 0).float().mean() < 0.04
        assert torch.equal(found.float().isnan(), wanted.float().isnan())


def test_numbers_that_eight_bits_can_tell_are_stored_exactly() -> None:
    heads = (2, 2, 64, 16)
    codes = torch.arange(3 * 6 * 64).remainder(127).to(torch.uint8)  # every positive number, some twice
    qkv = codes.view(torch.float8_e4m3fn).float().view(3, -1) / 4
    straight = torch.ones(3, 32), torch.zeros(3, 32)
    slots = torch.tensor([5, -1, 40], dtype=torch.int32)
    pool, expected = _pool(heads, torch.float8_e4m3fn), _pool(heads, torch.float8_e4m3fn)

    rope_store_fp8(qkv, straight, (*pool, 0.25, 0.25), slots)

    rope_store_fp8_reference(qkv, None, straight, (*expected, 0.25, 0.25), slots)
    for found, wanted in zip(pool, expected, strict=True):
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(pool[1][0, :, 5].view(torch.uint8), codes.view(3, 6, 64)[0, 4:])


def test_numbers_too_great_for_eight_bits_become_the_greatest() -> None:
    qkv = torch.cat((torch.zeros(16), torch.full((16,), 1e6), torch.full((16,), -1e6)))[None]
    pool = _pool((1, 1, 16, 16), torch.float8_e4m3fn)
    straight = torch.ones(1, 8), torch.zeros(1, 8)

    rope_store_fp8(qkv, straight, (*pool, 1.0, 1.0), torch.tensor([3], dtype=torch.int32))

    assert (pool[0][0, 0, :, 3].float() == 448).all()
    assert (pool[1][0, 0, 3].float() == -448).all()
