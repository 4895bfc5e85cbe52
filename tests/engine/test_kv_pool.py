"""The pool: its size in bytes, copies of blocks over all layers, and blocks on their way to colder tiers."""

import pytest
import torch

from engine.kv_pool import KVPool, bytes_per_block
from engine.models.config import ModelConfig
from kernels import Kernels
from prefix_cache.plan import BlockCopy, BlockId, Tier
from tests.engine.paged import make_pool

CONFIG = ModelConfig(
    family="llama",
    vocab_size=11,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_length=64,
    rms_eps=1e-5,
    rope_theta=10000.0,
)


def _copy(source: int, target: int) -> BlockCopy:
    return BlockCopy(Tier.DEVICE, BlockId(source), Tier.DEVICE, BlockId(target), num_tokens=3)


def test_a_block_costs_what_its_tensors_hold() -> None:
    pool = make_pool(CONFIG, Kernels.reference(), 5, torch.bfloat16)

    assert bytes_per_block(CONFIG, 16, torch.bfloat16) * 5 == pool.keys.nbytes + pool.values.nbytes


def test_a_copy_moves_a_block_of_every_layer_and_nothing_else() -> None:
    pool = make_pool(CONFIG, Kernels.reference(), 5)
    for block in range(5):
        pool.keys[:, block], pool.values[:, block] = block, 10 + block

    pool.copy([_copy(1, 4), _copy(1, 0), _copy(2, 3)])

    for block, source in enumerate([1, 1, 2, 2, 1]):
        assert (pool.keys[:, block] == source).all()
        assert (pool.values[:, block] == 10 + source).all()


def test_a_layer_is_a_view_of_the_pool() -> None:
    pool = make_pool(CONFIG, Kernels.reference(), 5)

    pool.layers[2][0].fill_(1)

    assert (pool.keys[2] == 1).all()
    assert pool.keys[:2].isnan().all()


def test_no_copies_are_no_work() -> None:
    pool = make_pool(CONFIG, Kernels.reference(), 5)

    pool.copy([])

    assert pool.keys.isnan().all()


def _blocks(*ids: int) -> list[BlockId]:
    return [BlockId(block) for block in ids]


def _random_pool(num_blocks: int, dtype: torch.dtype) -> KVPool:
    pool = make_pool(CONFIG, Kernels.reference(), num_blocks, dtype)
    generator = torch.Generator().manual_seed(3)
    pool.keys.normal_(generator=generator)
    pool.values.normal_(generator=generator)
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gathered_block_is_its_keys_layer_by_layer_and_then_its_values(dtype: torch.dtype) -> None:
    pool = _random_pool(5, dtype)
    out = torch.empty(2, pool.bytes_per_block, dtype=torch.uint8)

    pool.gather(_blocks(3, 1), out)

    for row, block in zip(out.view(dtype), (3, 1), strict=True):
        keys, values = row.chunk(2)
        assert torch.equal(keys.view_as(pool.keys[:, block]), pool.keys[:, block])
        assert torch.equal(values.view_as(pool.values[:, block]), pool.values[:, block])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scattering_puts_gathered_blocks_elsewhere_and_changes_no_other(dtype: torch.dtype) -> None:
    pool = _random_pool(6, dtype)
    keys, values = pool.keys.clone(), pool.values.clone()
    out = torch.empty(2, pool.bytes_per_block, dtype=torch.uint8)

    pool.gather(_blocks(1, 2), out)
    pool.scatter(_blocks(5, 0), out)

    for block, source in enumerate([2, 1, 2, 3, 4, 1]):
        assert torch.equal(pool.keys[:, block], keys[:, source])
        assert torch.equal(pool.values[:, block], values[:, source])


@pytest.mark.parametrize("block", [-1, 5])
def test_a_block_that_the_pool_does_not_have_is_not_gathered_or_scattered(block: int) -> None:
    pool = _random_pool(5, torch.float32)
    out = torch.empty(1, pool.bytes_per_block, dtype=torch.uint8)

    for call in (pool.gather, pool.scatter):
        with pytest.raises(AssertionError, match="no such block"):
            call(_blocks(block), out)
