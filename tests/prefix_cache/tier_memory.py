"""The memory of all tiers with digests for contents, and a disk that can be damaged and survives a crash."""

from collections.abc import Mapping

from prefix_cache.plan import BlockId, BlockRecord, Tier, Transfer
from tests.prefix_cache.memory import DigestMemory


class TierMemory:
    """What a mover moves. A crash takes all but the disk."""

    def __init__(self, num_blocks: Mapping[Tier, int], block_size: int) -> None:
        self.block_size = block_size
        self.tiers = {tier: DigestMemory(count, block_size) for tier, count in num_blocks.items()}
        self.records: dict[BlockId, BlockRecord] = {}
        self.damaged: set[BlockId] = set()

    def carry_out(self, transfer: Transfer, place: int) -> bool:
        """One copy of a transfer; False if what it should read is damaged or another's."""
        copy = transfer.copies[place]
        if copy.source_tier is Tier.DISK:
            record = self.records.get(copy.source_block)
            if record is None or copy.source_block in self.damaged:
                self.records.pop(copy.source_block, None)
                return False
            assert record == transfer.records[place], "the tree and the disk disagree on what lies there"
        if copy.target_tier is Tier.DISK:
            self.begin_write(transfer, place)
        slots = self.tiers[copy.source_tier].slots[copy.source_block][: copy.num_tokens]
        rest = [None] * (self.block_size - len(slots))
        self.tiers[copy.target_tier].slots[copy.target_block] = [*slots, *rest]
        if copy.target_tier is Tier.DISK:
            self.records[copy.target_block] = transfer.records[place]
        return True

    def begin_write(self, transfer: Transfer, place: int) -> None:
        """The first half of a write to the disk: what was there is gone, what comes is not there yet."""
        block = transfer.copies[place].target_block
        self.records.pop(block, None)
        self.damaged.discard(block)
        self.tiers[Tier.DISK].slots[block] = [None] * self.block_size

    def erase(self, block: BlockId) -> None:
        """Let a record of the disk go."""
        self.records.pop(block, None)

    def crash(self) -> None:
        """Lose everything but the disk."""
        for tier, memory in self.tiers.items():
            if tier is not Tier.DISK:
                self.tiers[tier] = DigestMemory(len(memory.slots), self.block_size)
