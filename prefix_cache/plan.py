"""What the cache asks others to do: copies of blocks, as plain data.

The cache never touches a tensor. It answers with copies; whoever owns the memory carries them out, all copies
of a step before that step writes anything.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

__all__ = ["BlockCopy", "BlockId", "Tier"]

BlockId = NewType("BlockId", int)


class Tier(Enum):
    """Where a block lies."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block's keys and values, every layer, from one place to another.

    Only the first `num_tokens` slots hold anything; a copy may move the whole block.
    """

    source_tier: Tier
    source_block: BlockId
    target_tier: Tier
    target_block: BlockId
    num_tokens: int
