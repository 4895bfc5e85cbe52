"""The host tier's memory: rows of whole blocks, taken only when they are used."""

import sys
from pathlib import Path

import pytest
import torch

from engine.host_pool import HostPool


def test_a_block_is_one_contiguous_row() -> None:
    pool = HostPool(5, 96, is_pinned=False)

    assert pool.blocks.shape == (5, 96)
    assert pool.blocks.dtype == torch.uint8
    assert pool.blocks.is_contiguous()
    assert not pool.blocks.is_pinned()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_was_never_written_is_not_taken() -> None:
    before = _resident_pages()

    pool = HostPool(1 << 10, 1 << 20, is_pinned=False)

    assert pool.num_blocks == 1 << 10
    assert _resident_pages() - before < 1 << 14


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_memory_that_the_machine_does_not_have_is_refused() -> None:
    with pytest.raises(RuntimeError):
        HostPool(1 << 40, 1 << 20, is_pinned=False)
