"""The tensors that hold keys and values, every layer's, in blocks.

Owns the memory, carries out the copies that the cache plans within it, and turns blocks to the form in which
colder tiers hold them and back. Knows neither whose a block is nor what lies in it. Layers come first in both
tensors, so one layer is one contiguous view and a block of all layers is one slice.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from engine.lanes import DeviceLane
from engine.models.config import ModelConfig
from engine.staged_moves import Run, StagedMoves
from engine.transfer import send
from kernels.byte_cache import STEP_BYTES
from kernels.operations import Operations
from prefix_cache.plan import BlockCopy, BlockId, Tier

__all__ = ["LAYOUT_VERSION", "KVPool", "bytes_per_block"]

LAYOUT_VERSION = 2  # of a block's bytes outside the pool; a new one makes what lies on disks foreign


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What one block costs over all layers, keys and values together."""
    head_size = _head_size(config, dtype)
    return 2 * config.num_layers * config.num_kv_heads * head_size * block_size * dtype.itemsize


def _head_size(config: ModelConfig, dtype: torch.dtype) -> int:
    """How many elements a token's key has of one head: with 8 bits there is a step beside them."""
    return config.head_dim + (STEP_BYTES if dtype == torch.int8 else 0)


class KVPool:
    """`num_blocks` blocks on the device. Their memory is untouched, and so not yet taken, until it is
    written.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        operations: Operations,
    ) -> None:
        heads, head_size = config.num_kv_heads, _head_size(config, dtype)
        # A row is what one layer's keys, or its values, hold of one block.
        rows = torch.empty(
            2 * config.num_layers * num_blocks, heads * head_size * block_size, dtype=dtype, device=device
        )
        keys, values = rows.chunk(2)
        # A block's slots stand side by side for keys, below each other for values: see docs/data-layout.md.
        self.keys = keys.view(config.num_layers, num_blocks, heads, head_size, block_size)
        self.values = values.view(config.num_layers, num_blocks, heads, block_size, head_size)
        self.layers = tuple(zip(self.keys.unbind(), self.values.unbind(), strict=True))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self.num_loads = np.zeros(num_blocks, np.int64)  # how often each block came from a colder tier
        self.bytes_per_block = bytes_per_block(config, block_size, dtype)
        self._operations = operations
        # Keys and values alike as bytes: [2, num_layers, num_blocks, bytes of a row].
        self._bytes = rows.view(torch.uint8).view(2, config.num_layers, num_blocks, -1)
        # Copies between tiers run beside the steps.
        self._staged = None
        if device.type == "cuda":
            bus, lane = DeviceLane(device), DeviceLane(device)
            self._staged = StagedMoves(self._bytes, operations, bus=bus, kernels=lane)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copies within the device's tier, whole blocks at a time."""
        if not copies:
            return
        assert all(copy.source_tier is Tier.DEVICE and copy.target_tier is Tier.DEVICE for copy in copies), (
            "this pool is the device's tier alone"
        )
        sources = np.array([copy.source_block for copy in copies], np.int64)
        targets = np.array([copy.target_block for copy in copies], np.int64)
        self._operations.copy_blocks(self._bytes.flatten(0, 1), *send((sources, targets), self.device))

    def gather(self, blocks: Sequence[BlockId], out: torch.Tensor) -> None:
        """Read whole blocks, each as its keys layer by layer and then its values.

        `out` is [len(blocks), bytes_per_block] uint8, contiguous, in the CPU's memory (pinned for a GPU), and
        holds them on return. Any thread may call it beside the steps: slots that a step writes may be torn.
        """
        run = self._run_of(blocks, out)
        if self._staged is None:
            self._operations.gather_blocks(self._bytes, *run)
        else:
            self._staged.gather(run)

    def scatter(self, blocks: Sequence[BlockId], source: torch.Tensor) -> None:
        """Write whole blocks from the form that `gather` gives. No block may be named twice.

        Any thread may call it beside the steps, as long as no step reads or writes these blocks.
        """
        for _ in self.scatter_runs([(blocks, source)]):
            pass

    def scatter_runs(self, runs: Iterable[tuple[Sequence[BlockId], torch.Tensor]]) -> Iterator[int]:
        """The same for one run of blocks after the other. Tells how many each was when it is written; on a
        GPU the next one is on its way then. Sources must last until all is told, or the iterator is closed.
        """

        def noted() -> Iterator[Run]:
            for blocks, source in runs:
                run = self._run_of(blocks, source)
                self.num_loads[list(blocks)] += 1
                yield run

        yield from self._scatter_here(noted()) if self._staged is None else self._staged.scatter(noted())

    def _scatter_here(self, runs: Iterable[Run]) -> Iterator[int]:
        for ids, source in runs:
            self._operations.scatter_blocks(self._bytes, ids, source)
            yield len(ids)

    def _run_of(self, blocks: Sequence[BlockId], lines: torch.Tensor) -> Run:
        ids = torch.tensor(blocks, dtype=torch.int64)
        assert ((ids >= 0) & (ids < self.num_blocks)).all(), f"no such block among {list(blocks)}"
        _, num_layers, _, row_bytes = self._bytes.shape
        return ids, lines.view(len(lines), 2, num_layers, row_bytes)
