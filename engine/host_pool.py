"""The host tier's memory: whole blocks, each in one piece.

Owns the memory and nothing else. A block here is one row: its keys layer by layer and then its values, the
form that `KVPool.gather` gives.
"""

import torch

__all__ = ["HostPool"]


class HostPool:
    """`num_blocks` blocks of the CPU's memory. Their pages are not taken before they are first written,
    unless they are pinned.

    Raises RuntimeError when the machine will not give the memory.
    """

    def __init__(self, num_blocks: int, bytes_per_block: int, *, is_pinned: bool) -> None:
        # A GPU reads and writes pinned memory itself, without a copy by the driver.
        self.blocks = torch.empty(  # [num_blocks, bytes_per_block]
            num_blocks, bytes_per_block, dtype=torch.uint8, pin_memory=is_pinned
        )
        self.num_blocks = num_blocks
