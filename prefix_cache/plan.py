"""What the cache asks others to do: copies of blocks, as plain data.

The cache never touches a tensor. It answers with copies; whoever owns the memory carries them out: those
within the device before the step that they belong to writes anything, those between tiers beside the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

__all__ = ["BlockCopy", "BlockId", "BlockRecord", "Tier", "Transfer", "copies_along"]

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


def copies_along(
    source: tuple[Tier, Sequence[BlockId]],
    target: tuple[Tier, Sequence[BlockId]],
    *,
    first: int,
    num_tokens: int,
    block_size: int,
) -> tuple[BlockCopy, ...]:
    """A path's blocks from one tier to another, from the given one to the last of so many tokens."""
    return tuple(
        BlockCopy(
            source[0],
            source[1][place],
            target[0],
            target[1][place],
            min(block_size, num_tokens - place * block_size),
        )
        for place in range(first, -(-num_tokens // block_size))
    )


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What a block on disk says of itself: enough to find its place in the tree again after a restart."""

    namespace: bytes
    parent: bytes  # the name of the block before it, or of the namespace's root (see hashing.py)
    name: bytes
    tokens: bytes  # packed; fewer than a block's in a conversation's last one


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Blocks of one path on their way between two tiers. Both ends are held until its end is told.

    Copies stand in path order: if only the first few can be carried out, what has arrived is still a prefix.
    `records` has one for each copy when either end is the disk, and is empty otherwise: on the way there they
    are written with the blocks, on the way back the block found must say exactly this of itself.
    """

    source: Tier
    target: Tier
    copies: tuple[BlockCopy, ...]
    records: tuple[BlockRecord, ...] = ()
