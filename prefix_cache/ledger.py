"""Who holds which blocks, what nobody holds, and making room among that.

Owns the pool, the eviction queues and the counts; the shape of the tree is tree.py's. free + cached + held is
always the number of blocks: free ones lie in the pool, cached ones in nodes without locks, and all others are
held.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from prefix_cache.blocks import BlockPool
from prefix_cache.eviction import EvictionPolicy, EvictionQueue
from prefix_cache.node import Namespace, Node
from prefix_cache.plan import BlockId
from prefix_cache.quota import Account, Quota, account_of
from prefix_cache.tokens import common_prefix

__all__ = ["Ledger"]


@dataclass(slots=True, eq=False)
class _Share:
    """The blocks of one account with a quota."""

    quota: Quota
    queue: EvictionQueue
    num_owned: int = 0  # cached or held
    num_cached: int = 0
    num_pinned: int = 0

    @property
    def num_evictable(self) -> int:
        """Blocks that others may take."""
        return min(self.num_cached, max(0, self.num_owned - self.quota.floor_blocks))


class Ledger:
    """The blocks of one tier, by state and by account."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        quotas: Mapping[Account, Quota],
        on_evict: Callable[[Node, int], None],
        *,
        tells_freed: bool,
    ) -> None:
        """`on_evict` is told of a node and how many blocks it loses from its end, before it loses them.
        `tells_freed` says whether anybody looks at `freed`.
        """
        self.num_evicted = 0  # blocks, since the start
        self.num_cached = 0  # blocks of nodes without locks
        self.num_locked_tokens = 0  # tokens of nodes with locks
        self.num_pinned = 0  # blocks of nodes with pins
        self.freed: set[BlockId] = set()  # since somebody looked, and not handed out again
        self._tells_freed = tells_freed
        self._block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._queue = policy.make_queue()  # of everybody without a quota
        self._shares = {account: _Share(quota, policy.make_queue()) for account, quota in quotas.items()}
        self._on_evict = on_evict

    @property
    def num_free(self) -> int:
        """Blocks in which nothing can be found."""
        return self._pool.num_free

    @property
    def num_held(self) -> int:
        """Blocks in a table, locked, or the end of a copy."""
        return self._pool.num_blocks - self.num_free - self.num_cached

    @property
    def num_reserved(self) -> int:
        """Blocks that floors keep for their accounts, used or not."""
        return sum(share.quota.floor_blocks for share in self._shares.values())

    def ceiling_of(self, namespace: Namespace) -> int:
        """Blocks that a namespace's account may have at most."""
        share = self._share(namespace)
        ceiling = None if share is None else share.quota.ceiling_blocks
        return self._pool.num_blocks if ceiling is None else ceiling

    def has_room(self, namespace: Namespace, num_blocks: int, num_spare: int = 0) -> bool:
        """Whether so many blocks could be handed out to a namespace, by evicting if need be, and the pool had
        some to spare then.
        """
        return num_blocks + num_spare <= self._num_in_pool(
            namespace
        ) and num_blocks <= self._num_below_ceiling(namespace)

    def is_capped(self, namespace: Namespace) -> bool:
        """Whether it is the account's own ceiling that it would come up against first."""
        return self._num_below_ceiling(namespace) < self._num_in_pool(namespace)

    def num_pinned_of(self, namespace: Namespace) -> int:
        """Blocks of a namespace's account with pins; 0 for accounts without a quota."""
        share = self._share(namespace)
        return 0 if share is None else share.num_pinned

    def allocate(self, num_blocks: int, namespace: Namespace) -> list[BlockId]:
        """Hand out blocks, evicting what goes next. Raises OutOfBlocks when too few are available."""
        own = self._share(namespace)
        if own is not None and own.quota.ceiling_blocks is not None:
            self._make_room_below(own, own.quota.ceiling_blocks - num_blocks)
        while self.num_free < num_blocks and self._evict_next(own, num_blocks - self.num_free):
            pass
        blocks = self._pool.allocate(num_blocks)
        if own is not None:
            own.num_owned += len(blocks)
        self.freed.difference_update(blocks)
        return blocks

    def take(self, blocks: Collection[BlockId]) -> None:
        """Hand out these very blocks."""
        self._pool.take(blocks)

    def adopt(self, node: Node) -> None:
        """Count an unlocked node whose blocks, which `take` has taken, held something before this ledger
        began.
        """
        share = self._share(node.namespace)
        if share is not None:
            share.num_owned += len(node.blocks)
        self._count_cached(node, len(node.blocks))
        self.offer(node)

    def free(self, blocks: list[BlockId], namespace: Namespace) -> None:
        """Take back blocks that no node has."""
        self._pool.free(blocks)
        if self._tells_freed:
            self.freed.update(blocks)
        share = self._share(namespace)
        if share is not None:
            share.num_owned -= len(blocks)

    def lock(self, node: Node) -> None:
        """Hold a node and all its ancestors."""
        for part in node.path():
            self.lock_one(part)

    def lock_one(self, node: Node) -> None:
        """Hold a node whose ancestors the holder has already."""
        if node.num_locks == 0:
            self._count_cached(node, -len(node.blocks))
            self.num_locked_tokens += node.num_tokens
        node.num_locks += 1

    def unlock(self, node: Node, *, now: float | None = None) -> None:
        """Undo one `lock`. `now` marks the path as used. What a longer sibling repeats is freed at once."""
        for part in node.path():
            part.num_locks -= 1
            if now is not None:
                part.last_used = now
            if part.num_locks == 0:
                self._count_cached(part, len(part.blocks))
                self.num_locked_tokens -= part.num_tokens
        while node.is_passing and node.num_locks == 0 and node.is_leaf and node.parent is not None:
            parent = node.parent
            self.remove(node)
            node = parent
        self.offer(node)
        self.drop_if_prefix(node)

    def pin(self, node: Node) -> None:
        """Hold a node and all its ancestors for as long as a pin lasts."""
        self.lock(node)
        for part in node.path():
            if part.num_pins == 0:
                self._count_pinned(part, len(part.blocks))
            part.num_pins += 1

    def unpin(self, node: Node) -> None:
        """Undo one `pin`."""
        for part in node.path():
            part.num_pins -= 1
            if part.num_pins == 0:
                self._count_pinned(part, -len(part.blocks))
        self.unlock(node)

    def offer(self, node: Node) -> None:
        """Tell that a node may have become an unlocked leaf, or that its standing has changed."""
        self._queue_of(node).offer(node)

    def drop_if_prefix(self, node: Node) -> None:
        """Free an unlocked partial block whose tokens a longer sibling holds too."""
        if node.parent is None or node.num_locks or len(node.blocks) > 1 or not node.is_leaf:
            return
        after = node.sibling_after()
        if after is None or (after.is_passing and not node.is_passing):
            return
        if common_prefix(after.tokens, node.tokens) == node.num_tokens:
            self.remove(node)

    def take_out(self, node: Node) -> list[BlockId]:
        """Detach a leaf that one lease alone holds; its blocks become that lease's own."""
        node.detach()
        self._queue_of(node).forget(node)
        self.num_locked_tokens -= node.num_tokens
        return node.blocks

    def remove(self, leaf: Node) -> None:
        """Take an unlocked leaf out of the tree and free its blocks."""
        parent = leaf.parent
        assert parent is not None, "only nodes of the tree are removed"
        leaf.detach()
        self._queue_of(leaf).forget(leaf)
        self._count_cached(leaf, -len(leaf.blocks))
        self.free(leaf.blocks, leaf.namespace)
        self.offer(parent)

    def trim(self, leaf: Node, num_tokens: int) -> None:
        """Take what follows the first so many tokens off an unlocked leaf, and its blocks."""
        if num_tokens == 0:
            self.remove(leaf)
            return
        keep = -(-num_tokens // self._block_size)
        gone = leaf.blocks[keep:]
        self._count_cached(leaf, -len(gone))
        self.free(gone, leaf.namespace)
        leaf.shorten(keep, num_tokens)
        self.offer(leaf)
        self.drop_if_prefix(leaf)

    def check_invariants(self, nodes: list[Node], private: list[tuple[Namespace, list[BlockId]]]) -> None:
        """The counts agree with the tree's nodes and the leases' private blocks."""
        loose = [block for _, blocks in private for block in blocks]
        self._pool.check_invariants([*(block for node in nodes for block in node.blocks), *loose])
        assert self.num_cached == sum(len(node.blocks) for node in nodes if not node.num_locks)
        assert self.num_locked_tokens == sum(node.num_tokens for node in nodes if node.num_locks)
        assert self.num_pinned == sum(len(node.blocks) for node in nodes if node.num_pins)
        for account, share in self._shares.items():
            own = [node for node in nodes if account_of(node.namespace) == account]
            num_private = sum(
                len(blocks) for namespace, blocks in private if account_of(namespace) == account
            )
            assert share.num_owned == sum(len(node.blocks) for node in own) + num_private
            assert share.num_cached == sum(len(node.blocks) for node in own if not node.num_locks)
            assert share.num_pinned == sum(len(node.blocks) for node in own if node.num_pins)
            assert share.num_owned <= self.ceiling_of(account), "an account has more than its ceiling"

    def _share(self, namespace: Namespace) -> _Share | None:
        return self._shares.get(account_of(namespace)) if self._shares else None

    def _queue_of(self, node: Node) -> EvictionQueue:
        share = self._share(node.namespace)
        return self._queue if share is None else share.queue

    def _count_cached(self, node: Node, num_blocks: int) -> None:
        self.num_cached += num_blocks
        share = self._share(node.namespace)
        if share is not None:
            share.num_cached += num_blocks

    def _count_pinned(self, node: Node, num_blocks: int) -> None:
        self.num_pinned += num_blocks
        share = self._share(node.namespace)
        if share is not None:
            share.num_pinned += num_blocks

    def _num_in_pool(self, namespace: Namespace) -> int:
        """Blocks that are free, or that a namespace may take from who has them cached."""
        num_in_pool = self.num_free + self.num_cached
        if self._shares:
            own = self._share(namespace)
            others = [share for share in self._shares.values() if share is not own]
            num_in_pool -= sum(share.num_cached - share.num_evictable for share in others)
        return num_in_pool

    def _num_below_ceiling(self, namespace: Namespace) -> int:
        """Blocks that an account may have beside those that it holds."""
        own = self._share(namespace)
        if own is None or own.quota.ceiling_blocks is None:
            return self._pool.num_blocks
        return own.quota.ceiling_blocks - own.num_owned + own.num_cached

    def _make_room_below(self, own: _Share, num_blocks: int) -> None:
        """Evict an account's own blocks until it has at most so many, as far as it goes."""
        while own.num_owned > num_blocks and own.num_cached:
            self._evict(own.queue, own.num_owned - num_blocks)

    def _evict_next(self, own: _Share | None, num_blocks: int) -> bool:
        """Evict up to so many blocks of whoever goes next; False when nobody can."""
        candidates = [(self._queue, num_blocks)]
        for share in self._shares.values():
            num_evictable = share.num_cached if share is own else share.num_evictable
            if num_evictable:
                candidates.append((share.queue, min(num_blocks, num_evictable)))
        # A run that was shared may hang under blocks of a floor: then these must go after all.
        beyond_floors = [(share.queue, 1) for share in self._shares.values()]
        for queue, limit in self._in_order(candidates) or self._in_order(beyond_floors):
            self._evict(queue, limit)
            return True
        return False

    def _in_order(self, candidates: list[tuple[EvictionQueue, int]]) -> list[tuple[EvictionQueue, int]]:
        """Those that can give something, the lowest standing first."""
        ranked = [
            (standing, place)
            for place, (queue, _) in enumerate(candidates)
            if (standing := queue.peek()) is not None
        ]
        return [candidates[place] for _, place in sorted(ranked)]

    def _evict(self, queue: EvictionQueue, num_blocks: int) -> None:
        """Free up to `num_blocks` blocks from the end of the leaf that goes next."""
        leaf = queue.pop()
        assert leaf is not None, "cached blocks are counted that no leaf holds"
        self.shorten(leaf, min(num_blocks, len(leaf.blocks)))

    def shorten(self, leaf: Node, num_blocks: int) -> None:
        """Evict blocks from the end of an unlocked leaf."""
        self._on_evict(leaf, num_blocks)
        self.num_evicted += num_blocks
        self.trim(leaf, (len(leaf.blocks) - num_blocks) * self._block_size)
