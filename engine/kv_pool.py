"""The tensors that hold keys and values, every layer's, in blocks.

Owns the memory and carries out the copies that the cache plans. Knows neither whose a block is nor what lies
in it. Layers come first in both tensors, so one layer is one contiguous view and a block of all layers is one
slice.
"""

from collections.abc import Callable, Sequence

import torch

from engine.models.config import ModelConfig
from prefix_cache.plan import BlockCopy, Tier

__all__ = ["KVPool", "bytes_per_block"]


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """What one block costs over all layers, keys and values together."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize


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
        blocks = (config.num_layers, num_blocks, config.num_kv_heads)
        # A block's slots stand side by side for keys, below each other for values: see docs/data-layout.md.
        self.keys = torch.empty(*blocks, config.head_dim, block_size, dtype=dtype, device=device)
        self.values = torch.empty(*blocks, block_size, config.head_dim, dtype=dtype, device=device)
        self.layers = tuple(zip(self.keys.unbind(), self.values.unbind(), strict=True))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._copy_blocks = copy_blocks

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
