"""Who holds which blocks, what nobody holds, and making room among that.

Owns the pool, the eviction queue and the counts; the shape of the tree is tree.py's. free + cached + held is
always the number of blocks: free ones lie in the pool, cached ones in nodes without locks, and all others are
held.
"""

from collections.abc import Iterable

from prefix_cache.blocks import BlockPool
from prefix_cache.eviction import EvictionPolicy, EvictionQueue
from prefix_cache.node import Node
from prefix_cache.plan import BlockId
from prefix_cache.tokens import TOKEN_BYTES, common_prefix

__all__ = ["Ledger"]


class Ledger:
    """The blocks of one tier, by state."""

    def __init__(self, num_blocks: int, block_size: int, policy: EvictionPolicy) -> None:
        self.num_evicted = 0  # blocks, since the start
        self.num_cached = 0  # blocks of nodes without locks
        self.num_locked_tokens = 0  # tokens of nodes with locks
        self._block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._queue = EvictionQueue(policy)

    @property
    def num_free(self) -> int:
        """Blocks in which nothing can be found."""
        return self._pool.num_free

    @property
    def num_held(self) -> int:
        """Blocks in a table, locked, or the end of a copy."""
        return self._pool.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that could be handed out, by evicting if need be."""
        return self.num_free + self.num_cached

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Hand out blocks, evicting what goes next. Raises OutOfBlocks when `num_available` is too small."""
        while self.num_free < num_blocks and self.num_cached:
            self._evict(num_blocks - self.num_free)
        return self._pool.allocate(num_blocks)

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Take back blocks that no node has."""
        self._pool.free(blocks)

    def lock(self, node: Node) -> None:
        """Hold a node and all its ancestors."""
        for part in node.path():
            self.lock_one(part)

    def lock_one(self, node: Node) -> None:
        """Hold a node whose ancestors the holder has already."""
        if node.num_locks == 0:
            self.num_cached -= len(node.blocks)
            self.num_locked_tokens += node.num_tokens
        node.num_locks += 1

    def unlock(self, node: Node, *, now: float | None = None) -> None:
        """Undo one `lock`. `now` marks the path as used. What a longer sibling repeats is freed at once."""
        for part in node.path():
            part.num_locks -= 1
            if now is not None:
                part.last_used = now
            if part.num_locks == 0:
                self.num_cached += len(part.blocks)
                self.num_locked_tokens -= part.num_tokens
        self._queue.offer(node)
        self.drop_if_prefix(node)

    def drop_if_prefix(self, node: Node) -> None:
        """Free an unlocked partial block whose tokens a longer sibling holds too."""
        if node.parent is None or node.num_locks or len(node.blocks) > 1 or not node.is_leaf:
            return
        after = node.sibling_after()
        if after is not None and common_prefix(after.tokens, node.tokens) == node.num_tokens:
            self._remove(node)

    def take_out(self, node: Node) -> list[BlockId]:
        """Detach a leaf that one lease alone holds; its blocks become that lease's own."""
        node.detach()
        self._queue.forget(node)
        self.num_locked_tokens -= node.num_tokens
        return node.blocks

    def check_invariants(self, nodes: list[Node], private: list[BlockId]) -> None:
        """The counts agree with the tree's nodes and the leases' private blocks."""
        self._pool.check_invariants([*(block for node in nodes for block in node.blocks), *private])
        assert self.num_cached == sum(len(node.blocks) for node in nodes if not node.num_locks)
        assert self.num_locked_tokens == sum(node.num_tokens for node in nodes if node.num_locks)

    def _evict(self, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks from the end of the leaf that goes next."""
        leaf = self._queue.pop()
        assert leaf is not None, "cached blocks are counted that no leaf holds"
        if len(leaf.blocks) <= num_blocks:
            self.num_evicted += len(leaf.blocks)
            self._remove(leaf)
            return
        keep = len(leaf.blocks) - num_blocks
        self._pool.free(leaf.blocks[keep:])
        del leaf.blocks[keep:], leaf.tokens[keep * self._block_size * TOKEN_BYTES :]
        self.num_cached -= num_blocks
        self.num_evicted += num_blocks
        self._queue.offer(leaf)

    def _remove(self, leaf: Node) -> None:
        """Take an unlocked leaf out of the tree and free its blocks."""
        parent = leaf.parent
        assert parent is not None, "only nodes of the tree are removed"
        leaf.detach()
        self._queue.forget(leaf)
        self.num_cached -= len(leaf.blocks)
        self._pool.free(leaf.blocks)
        self._queue.offer(parent)
