"""Rotation and storing: what is stored where, and that nothing else is touched."""

import pytest
import torch

from kernels import Kernels
from tests.kernels.pools import paired_keys, paired_values

NUM_BLOCKS, BLOCK_SIZE = 5, 16
IMPLEMENTATIONS = [Kernels.reference(), Kernels.cpu()]
HEADS = [(6, 2, 64), (3, 3, 24), (4, 1, 80), (2, 2, 18), (1, 1, 128), (9, 3, 96)]


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
    keys, values = _pool(heads, dtype)
    expected_keys, expected_values = _pool(heads, dtype)

    query = Kernels.cpu().rope_store_kv(qkv, cosines, sines, keys, values, slots)

    expected = Kernels.reference().rope_store_kv(qkv, cosines, sines, expected_keys, expected_values, slots)
    torch.testing.assert_close(query, expected)
    torch.testing.assert_close(keys, paired_keys(expected_keys), equal_nan=True)
    torch.testing.assert_close(values, paired_values(expected_values), equal_nan=True)


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


@pytest.mark.parametrize("slot", range(4))
def test_a_slot_leaves_the_one_beside_it_as_it_was(slot: int) -> None:
    qkv, cosines, sines, _ = _inputs(HEADS[0], torch.bfloat16)
    keys, values = (pool.fill_(7) for pool in _pool(HEADS[0], torch.bfloat16))

    slots = torch.tensor([slot, -1, -1, -1, -1], dtype=torch.int32)
    Kernels.cpu().rope_store_kv(qkv, cosines, sines, keys, values, slots)

    assert (keys != 7).sum() == (values != 7).sum() == 2 * 64


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=["reference", "cpu"])
def test_a_quarter_turn_swaps_the_halves_of_a_head(kernels: Kernels) -> None:
    qkv = torch.arange(3 * 32, dtype=torch.float32)[None]
    pool = _pool((1, 1, 32), torch.float32)

    query = kernels.rope_store_kv(
        qkv, torch.zeros(1, 16), torch.ones(1, 16), *pool, torch.tensor([2], dtype=torch.int32)
    )

    assert query.flatten().tolist() == [-x for x in range(16, 32)] + list(range(16))
    assert pool[1][0, 0, 2].tolist() == list(range(64, 96))
