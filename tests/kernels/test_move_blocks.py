"""Whole blocks copied within a pool, brought together and put back: Triton's kernels and the CPU's."""

import pytest
import torch

from kernels import Kernels
from kernels.move_blocks import gather_blocks, scatter_blocks

IMPLEMENTATIONS = [Kernels.triton(), Kernels.cpu(), Kernels.reference()]
NAMES = ["triton", "cpu", "reference"]
NUM_LAYERS, NUM_BLOCKS = 3, 6


def _pool(row_bytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    shape = (2, NUM_LAYERS, NUM_BLOCKS, row_bytes)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=NAMES)
@pytest.mark.parametrize("row_bytes", [1, 64, 100, 2000, 8192, 20_000])
def test_a_plan_copies_blocks_in_every_area_and_nothing_else(kernels: Kernels, row_bytes: int) -> None:
    pool = _pool(row_bytes)
    before = pool.clone()

    kernels.copy_blocks(pool.flatten(0, 1), torch.tensor([1, 1, 2]), torch.tensor([4, 0, 5]))

    assert torch.equal(pool, before[:, :, [1, 1, 2, 3, 1, 2]])


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=NAMES)
@pytest.mark.parametrize("row_bytes", [1, 64, 100, 2000, 20_000])
def test_blocks_are_gathered_and_scattered_whole(kernels: Kernels, row_bytes: int) -> None:
    pool = _pool(row_bytes)
    before = pool.clone()
    staging = torch.empty(2, 2, NUM_LAYERS, row_bytes, dtype=torch.uint8)

    kernels.gather_blocks(pool, torch.tensor([4, 1]), staging)
    kernels.scatter_blocks(pool, torch.tensor([0, 3]), staging)

    assert torch.equal(staging[0], before[:, :, 4])
    assert torch.equal(staging[1], before[:, :, 1])
    assert torch.equal(pool, before[:, :, [4, 1, 2, 1, 4, 5]])


@pytest.mark.parametrize("first", [0, 1])
def test_some_layers_are_moved_alone(first: int) -> None:
    pool, layers = _pool(100), slice(first, first + 2)
    before, blocks = pool.clone(), torch.tensor([5, 2])
    staging = torch.zeros(2, 2, NUM_LAYERS, 100, dtype=torch.uint8)

    gather_blocks(pool[:, layers], blocks, staging[:, :, layers])

    expected = torch.zeros_like(staging)
    expected[:, :, layers] = before[:, layers][:, :, blocks].permute(2, 0, 1, 3)
    assert torch.equal(staging, expected)
    scatter_blocks(pool[:, layers], torch.tensor([0, 1]), staging[:, :, layers])
    before[:, layers, :2] = before[:, layers][:, :, blocks]
    assert torch.equal(pool, before)


def test_places_past_two_gigabytes_are_reached() -> None:
    # Memory that is not touched is not taken: only the rows that are read and written are.
    pool = torch.empty(2, 1, 3, 3 << 29, dtype=torch.uint8)[..., :100]
    pool[1, 0, 2] = 7
    staging = torch.zeros(1, 2, 1, 100, dtype=torch.uint8)

    gather_blocks(pool[1:], torch.tensor([2]), staging[:, :1])

    assert (staging[0, 0] == 7).all()
    assert (staging[0, 1] == 0).all()
