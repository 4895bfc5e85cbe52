"""The pool: its size in bytes, and copies of blocks over all layers."""

import torch

from engine.kv_pool import bytes_per_block
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
