"""The radix tree of one tier: finding prefixes, leasing them to sequences, and making computed blocks
findable.

Owns which block holds which tokens; owns no tensor. No slot below a committed length is ever written again,
and a node that is held has held ancestors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.lease import PLAIN, Lease, Retention
from prefix_cache.ledger import Ledger
from prefix_cache.node import Namespace, Node
from prefix_cache.plan import BlockCopy, BlockId, Tier
from prefix_cache.quota import Account, Quota
from prefix_cache.tokens import TOKEN_BYTES, common_prefix

__all__ = ["PrefixCache"]


@dataclass(frozen=True, slots=True)
class _Match:
    """The part of a prefix found in the tree: a path to `node`, then some tokens of `tail`'s first block.

    `num_tokens` is where `node` ends, on a block boundary. `tail` is None when the match ends there too.
    """

    node: Node
    num_tokens: int
    tail: Node | None
    num_tail_tokens: int


def _ignore_eviction(node: Node, num_blocks: int) -> None:
    pass


class PrefixCache:
    """One radix tree over one pool of blocks. Tokens are given packed (see tokens.py)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        tier: Tier = Tier.DEVICE,
        policy: EvictionPolicy | None = None,
        quotas: Mapping[Account, Quota] | None = None,
        on_evict: Callable[[Node, int], None] = _ignore_eviction,
    ) -> None:
        """`on_evict` is told of a node and how many blocks it loses from its end, before it loses them."""
        self.tier = tier
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_copied = 0  # blocks, since the start
        self._policy = policy or LeastRecentlyUsed()
        self.ledger = Ledger(num_blocks, block_size, self._policy, quotas or {}, on_evict)
        self._root = Node(namespace=b"")
        self._serials = count(1)
        self._planned: list[tuple[BlockCopy, Node]] = []  # copies not yet taken; their sources are locked
        self._running: list[Node] = []  # sources of the copies that were taken

    def num_held_tokens(self, leases: Iterable[tuple[Lease, int]]) -> int:
        """Tokens in held blocks, shared ones once, given every lease with its number of computed tokens."""
        private = sum(
            num_computed - lease.num_committed + len(lease.duplicates) * self.block_size
            for lease, num_computed in leases
        )
        return self.ledger.num_locked_tokens + private

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens lie in the tree. Holds nothing and refreshes nothing."""
        found = self._find(namespace, bytearray(tokens))
        return found.num_tokens + found.num_tail_tokens

    def acquire(
        self,
        namespace: Namespace,
        tokens: bytes,
        *,
        max_new: int,
        num_required: int,
        now: float,
        retention: Retention = PLAIN,
        whole_blocks: bool = False,
    ) -> Lease | None:
        """Hold the longest cached prefix of `tokens`, and blocks for up to `max_new` of the tokens after it.

        At least one token is left to compute: without it there are no logits. None, with nothing held, when
        blocks for `num_required` tokens in all cannot be had now. A match that ends inside a block plans a
        copy, or takes the block over when it is nobody's and ends where the match does; with `whole_blocks`
        it is cut down to the block's start instead.
        """
        found = self._find(namespace, bytearray(tokens[:-TOKEN_BYTES]))
        path = list(reversed(list((found.tail or found.node).path())))
        prior_uses = 0 if retention.is_side else self._policy.note_match(namespace, tokens, path, now)
        without_tail = _Match(found.node, found.num_tokens, None, 0)
        lease = self._hold(without_tail if whole_blocks else found, namespace, num_required, retention, now)
        if lease is None and found.tail is not None:
            # The block that the match ends in may be the very one that must make room.
            lease = self._hold(without_tail, namespace, num_required, retention, now)
        if lease is None:
            return None
        lease.prior_uses = prior_uses
        num_wanted = min(lease.num_matched + max_new, len(tokens) // TOKEN_BYTES, num_required)
        is_grown = self.grow(lease, num_wanted)
        assert is_grown, "room for all that is required was there a moment ago"
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """Add blocks until there are slots for `num_tokens`. False, changing nothing, if too few are left."""
        num_missing = self._num_blocks_for(num_tokens) - len(lease.blocks)
        if num_missing > self.ledger.num_available(lease.namespace):
            return False
        lease.blocks += self.ledger.allocate(num_missing, lease.namespace)
        return True

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """Make computed tokens findable: those from `lease.num_committed` on, which the lease's blocks hold.

        A partial block that is a prefix of another in the tree waits until it differs: hand it again then.
        What a side request computed stays its own.
        """
        if lease.retention.is_side:
            return
        position = 0
        while position < len(tokens):
            offset = lease.num_committed % self.block_size
            end = position + (self.block_size - offset) * TOKEN_BYTES
            piece = bytearray(tokens[position:end])
            if offset:
                self._fill_tail(lease, piece)
            elif not self._add_block(lease, piece):
                return
            lease.num_committed += len(piece) // TOKEN_BYTES
            position = end

    def release(self, lease: Lease, now: float) -> None:
        """Let go of everything: what was committed stays cached, the rest is free. The lease is void.

        Not while a step that uses the lease is in flight: its blocks would be handed out under it.
        """
        private = self._private_blocks(lease)
        self._cancel_copies(set(private))
        self.ledger.free(private, lease.namespace)
        self.ledger.unlock(lease.node, now=None if lease.retention.is_side else now)
        lease.blocks, lease.duplicates = [], []

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies planned since the last call, to be carried out before the next writes."""
        copies = tuple(copy for copy, _ in self._planned)
        self.num_copied += len(copies)
        self._running += [source for _, source in self._planned]
        self._planned.clear()
        return copies

    def finish_copies(self) -> None:
        """All copies taken so far have been carried out: their sources need no protection any more."""
        for source in self._running:
            self.ledger.unlock(source)
        self._running.clear()

    def check_invariants(self, leases: Iterable[Lease]) -> None:
        """Assert from scratch what must always hold, given every lease that is out. Slow."""
        leases = list(leases)
        nodes = list(self._root.walk())
        for node in nodes:
            node.check_invariants(self.block_size)
        sources = [source for _, source in self._planned] + self._running
        holders = [lease.node for lease in leases] + sources
        paths = [id(node) for holder in holders for node in holder.path()]
        assert all(node.num_locks == paths.count(id(node)) for node in nodes), "a lock is lost or left"
        for lease in leases:
            assert sum(node.num_tokens for node in lease.node.path()) == lease.num_committed
        private = [(lease.namespace, self._private_blocks(lease)) for lease in leases]
        self.ledger.check_invariants(nodes, private)

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _private_blocks(self, lease: Lease) -> list[BlockId]:
        return lease.duplicates + lease.blocks[self._num_blocks_for(lease.num_committed) :]

    def _find(self, namespace: Namespace, tokens: bytearray) -> _Match:
        """Walk as far as tokens agree. A node that the match leaves in its middle is split there."""
        node, position = self._root, 0
        while True:
            child, length = node.nearest_child(namespace, tokens[position * TOKEN_BYTES :])
            if child is None:
                return _Match(node, position, None, 0)
            num_blocks, num_tail = divmod(length, self.block_size)
            if num_blocks == len(child.blocks):
                node, position = child, position + length
                continue
            if num_blocks:
                node = child.split(num_blocks, self.block_size, next(self._serials))
                position += num_blocks * self.block_size
            return _Match(node, position, child if num_tail else None, num_tail)

    def _hold(
        self, found: _Match, namespace: Namespace, num_required: int, retention: Retention, now: float
    ) -> Lease | None:
        """Lock a match and turn it into a lease without new blocks, if what it lacks can be had."""
        tail = found.tail
        takes_over = tail is not None and not retention.is_side and self._can_take_over(found, namespace)
        holder = found.node if tail is None else tail
        self.ledger.lock(holder)
        num_blocks = self._num_blocks_for(found.num_tokens) + takes_over
        if self._num_blocks_for(num_required) - num_blocks > self.ledger.num_available(namespace):
            self.ledger.unlock(holder)
            return None
        node = holder if takes_over else found.node
        if not retention.is_side:
            self._note_use(node, retention, now)
        num_matched = found.num_tokens + found.num_tail_tokens
        num_committed = num_matched if takes_over else found.num_tokens
        lease = Lease(namespace, node, num_matched, num_committed, now, retention)
        lease.blocks = [block for part in reversed(list(node.path())) for block in part.blocks]
        if tail is not None and not takes_over:
            self.ledger.lock(found.node)  # the lock on the tail is the copy's
            self._plan_copy(lease, tail, found.num_tail_tokens)
        return lease

    def _note_use(self, node: Node, retention: Retention, now: float) -> None:
        for part in node.path():
            part.last_used = now
            part.num_uses += 1
            part.priority = max(part.priority, retention.priority)

    def _can_take_over(self, found: _Match, namespace: Namespace) -> bool:
        """Whether the block that a match ends in may be written further by the lease that matched it."""
        tail = found.tail
        assert tail is not None
        is_whole = tail.num_tokens == found.num_tail_tokens
        return is_whole and tail.is_leaf and tail.num_locks == 0 and tail.namespace == namespace

    def _plan_copy(self, lease: Lease, source: Node, num_tokens: int) -> None:
        lease.blocks += self.ledger.allocate(1, lease.namespace)
        target = lease.blocks[-1]
        copy = BlockCopy(self.tier, source.blocks[0], self.tier, target, num_tokens)
        self._planned.append((copy, source))

    def _cancel_copies(self, targets: set[BlockId]) -> None:
        """Drop copies into blocks that nobody wants any more, before they are taken."""
        for copy, source in self._planned:
            if copy.target_block in targets:
                self.ledger.unlock(source)
        self._planned = [item for item in self._planned if item[0].target_block not in targets]

    def _fill_tail(self, lease: Lease, piece: bytearray) -> None:
        """Extend the partial block that ends the lease's path. Its holder alone writes it; others copy."""
        node, parent = lease.node, lease.node.parent
        assert parent is not None, "a partial block hangs below the root"
        if len(node.blocks) > 1:  # its place among its siblings is settled by its first, full block
            node.tokens += piece
        else:
            node.detach()
            node.tokens += piece
            parent.attach(node)
        self.ledger.num_locked_tokens += len(piece) // TOKEN_BYTES
        twin = self._twin(node)
        if twin is not None:  # the block has become equal to one that was there first
            lease.duplicates += self.ledger.take_out(node)
            self._descend(lease, twin)

    def _twin(self, node: Node) -> Node | None:
        """The sibling that begins with the same full block. None while a copy still reads this one."""
        if len(node.blocks) > 1 or node.num_tokens < self.block_size or node.num_locks > 1:
            return None
        for sibling in (node.sibling_before(), node.sibling_after()):
            if sibling is not None and common_prefix(sibling.tokens, node.tokens) == self.block_size:
                return sibling
        return None

    def _add_block(self, lease: Lease, piece: bytearray) -> bool:
        """Hang the lease's next block into the tree; False if it must wait: a longer equal run is there."""
        node = lease.node
        block = lease.blocks[lease.num_committed // self.block_size]
        child, length = node.nearest_child(lease.namespace, piece)
        if child is not None and length == len(piece) // TOKEN_BYTES:
            if length < self.block_size:
                return False
            lease.duplicates.append(block)
            self._descend(lease, child)
            return True
        if not node.is_root and node.is_leaf and node.num_locks == 1 and node.namespace == lease.namespace:
            node.tokens += piece
            node.blocks.append(block)
        else:
            self._add_child(lease, piece, block)
        self.ledger.num_locked_tokens += len(piece) // TOKEN_BYTES
        return True

    def _add_child(self, lease: Lease, piece: bytearray, block: BlockId) -> None:
        parent = lease.node
        child = Node(
            lease.namespace,
            piece,
            [block],
            num_locks=1,
            num_uses=lease.prior_uses,
            priority=lease.retention.priority,
            created=lease.started,
            last_used=lease.started,
            serial=next(self._serials),
        )
        parent.attach(child)
        lease.node = child
        before = child.sibling_before()
        if before is not None:
            self.ledger.drop_if_prefix(before)

    def _descend(self, lease: Lease, child: Node) -> None:
        """Move the lease's path one block down, onto a block that another sequence computed."""
        is_longer = len(child.blocks) > 1
        lease.node = child.split(1, self.block_size, next(self._serials)) if is_longer else child
        self.ledger.lock_one(lease.node)
