"""The tensors that hold keys and values, every layer's, in blocks.

Owns the memory, carries out the copies that the cache plans within it, and turns blocks to the form in which
colder tiers hold them and back. Knows neither whose a block is nor what lies in it. Layers come first in both
tensors, so one layer is one contiguous view and a block of all layers is one slice.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.models.config import ModelConfig
from kernels.byte_cache import STEP_BYTES
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
        copy_blocks: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
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
        self._copy_blocks = copy_blocks
        self._rows = rows.view(torch.uint8)  # [2 * num_layers * num_blocks, bytes]
        self._first_rows = np.arange(0, len(rows), num_blocks)  # of block 0 in every layer
        # Copies between tiers run beside the steps, which use the device's default stream.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copies within the device's tier, whole blocks at a time."""
        if not copies:
            return
        assert all(copy.source_tier is Tier.DEVICE and copy.target_tier is Tier.DEVICE for copy in copies), (
            "this pool is the device's tier alone"
        )
        sources = torch.tensor([copy.source_block for copy in copies], device=self.keys.device)
        targets = torch.tensor([copy.target_block for copy in copies], device=self.keys.device)
        self._copy_blocks(self.keys, sources, targets)
        self._copy_blocks(self.values, sources, targets)

    def gather(self, blocks: Sequence[BlockId], out: torch.Tensor) -> None:
        """Read whole blocks, each as its keys layer by layer and then its values.

        `out` is [len(blocks), bytes_per_block] uint8, contiguous, in the CPU's memory (pinned for a GPU), and
        holds them on return. Any thread may call it beside the steps: slots that a step writes may be torn.
        """
        rows = self._rows_of(blocks)
        lines = out.view(len(rows), -1)
        if self._stream is None:
            # numpy copies on the calling thread alone and without the interpreter's lock. "clip" is what lets
            # it write to `out` directly; no row is out of range.
            np.take(self._rows.numpy(), rows, axis=0, out=lines.numpy(), mode="clip")
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream(self.device))
            lines.copy_(self._rows[torch.from_numpy(rows).to(self.device)], non_blocking=True)
        self._stream.synchronize()

    def scatter(self, blocks: Sequence[BlockId], source: torch.Tensor) -> None:
        """Write whole blocks from the form that `gather` gives. No block may be named twice.

        Any thread may call it beside the steps, as long as no step reads or writes these blocks.
        """
        rows = self._rows_of(blocks)
        lines = source.view(len(rows), -1)
        self.num_loads[list(blocks)] += 1
        if self._stream is None:
            self._rows.numpy()[rows] = lines.numpy()
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream(self.device))
            self._rows[torch.from_numpy(rows).to(self.device)] = lines.to(self.device, non_blocking=True)
        self._stream.synchronize()

    def _rows_of(self, blocks: Sequence[BlockId]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        ids = np.array(blocks, dtype=np.int64)
        assert ((ids >= 0) & (ids < self.num_blocks)).all(), f"no such block among {list(blocks)}"
        return (ids[:, None] + self._first_rows).reshape(-1)
