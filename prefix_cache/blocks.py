"""The blocks of one tier that nobody uses: handing out and taking back.

Every block is in exactly one state:

    free      nothing in it can be found; ready to be handed out (this file)
    cached    findable in the tree, held by nobody; may be evicted (tree.py)
    held      in a sequence's table, locked in the tree, or the end of a copy (tree.py)
"""

from collections.abc import Collection, Iterable

from prefix_cache.plan import BlockId

__all__ = ["BlockPool", "OutOfBlocks"]


class OutOfBlocks(Exception):
    """More blocks were asked for than are free."""


class BlockPool:
    """The free list of one tier. Recently freed blocks are handed out first: their memory is warm."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Hand out blocks, all or none. Raises OutOfBlocks."""
        if num_blocks > len(self._free):
            raise OutOfBlocks(f"{num_blocks} blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        if num_blocks <= 0:
            return []
        blocks = self._free[-num_blocks:][::-1]
        del self._free[-num_blocks:]
        for block in blocks:
            self._is_free[block] = 0
        return blocks

    def take(self, blocks: Collection[BlockId]) -> None:
        """Hand out these very blocks, which must be free: they held something before this pool began."""
        taken = set(blocks)
        assert all(self._is_free[block] for block in taken), "a block that is used cannot be taken"
        self._free = [block for block in self._free if block not in taken]
        for block in taken:
            self._is_free[block] = 0

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Take blocks back. Freeing a block twice is a bug and fails."""
        for block in blocks:
            assert not self._is_free[block], f"block {block} was freed twice"
            self._is_free[block] = 1
            self._free.append(block)

    def check_invariants(self, used: Iterable[BlockId]) -> None:
        """Free and used blocks together are all blocks, each once."""
        everything = sorted([*self._free, *used])
        assert everything == list(range(self.num_blocks)), "a block is lost, or owned twice"
        assert sum(self._is_free) == len(self._free), "the free list and its marks differ"
