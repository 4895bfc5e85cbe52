"""Rotation and storing: what is stored where, and that nothing else is touched."""

import pytest
import torch

from kernels import Kernels

NUM_BLOCKS, BLOCK_SIZE = 5, 16
IMPLEMENTATIONS = [Kernels.reference(), Kernels.cpu()]
HEADS = [(6, 2, 64), (3, 3, 24)]


def _inputs(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    num_heads, num_kv_heads, head_dim = heads
    qkv = torch.randn(5, (num_heads + 2 * num_kv_heads) * head_dim, generator=generator).to(dtype)
    angles = torch.rand(5, head_dim // 2, generator=generator) * 100
    slots = torch.tensor([79, 0, -1, 16, 31], dtype=torch.int32)
    return qkv, angles.cos(), angles.sin(), slots


def _pool(heads: tuple[int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    _, num_kv_heads, head_dim = heads
    keys = torch.full((NUM_BLOCKS, num_kv_heads, head_dim, BLOCK_SIZE), torch.nan, dtype=dtype)
    values = torch.full((NUM_BLOCKS, num_kv_heads, BLOCK_SIZE, head_dim), torch.nan, dtype=dtype)
    return keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
def test_the_compiled_kernel_agrees_with_the_reference(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    qkv, cosines, sines, slots = _inputs(heads, dtype)
    results = []
    for kernels in IMPLEMENTATIONS:
        pool = _pool(heads, dtype)
        query = kernels.rope_store_kv(qkv, cosines, sines, *pool, slots)
        results.append((query, *pool))

    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=["reference", "cpu"])
def test_only_the_slots_of_the_step_are_written(kernels: Kernels) -> None:
    qkv, cosines, sines, slots = _inputs(HEADS[0], torch.float32)
    keys, values = _pool(HEADS[0], torch.float32)

    kernels.rope_store_kv(qkv, cosines, sines, keys, values, slots)

    written = [slot for slot in range(NUM_BLOCKS * BLOCK_SIZE) if slot in slots.tolist()]
    key_slots = (~keys.isnan()).all(dim=2).all(dim=1).flatten().nonzero().flatten().tolist()
    value_slots = (~values.isnan()).all(dim=3).all(dim=1).flatten().nonzero().flatten().tolist()
    assert key_slots == value_slots == written
    assert (~keys.isnan()).sum() == len(written) * 2 * 64


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=["reference", "cpu"])
def test_a_quarter_turn_swaps_the_halves_of_a_head(kernels: Kernels) -> None:
    qkv = torch.arange(3 * 32, dtype=torch.float32)[None]
    pool = _pool((1, 1, 32), torch.float32)

    query = kernels.rope_store_kv(
        qkv, torch.zeros(1, 16), torch.ones(1, 16), *pool, torch.tensor([2], dtype=torch.int32)
    )

    assert query.flatten().tolist() == [-x for x in range(16, 32)] + list(range(16))
    assert pool[1][0, 0, 2].tolist() == list(range(64, 96))
