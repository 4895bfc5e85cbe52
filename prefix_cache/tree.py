"""The radix tree of one tier as sequences see it: leasing prefixes, and making computed blocks findable.

Owns no tensor. No slot below a committed length is ever written again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.lease import PLAIN, Lease, Retention
from prefix_cache.node import Namespace, Node
from prefix_cache.paths import Hold, Match, OnEvict, PathTree, ignore_eviction
from prefix_cache.plan import BlockCopy, BlockId, Tier
from prefix_cache.quota import Account, Quota
from prefix_cache.tokens import TOKEN_BYTES, common_prefix, matchable

__all__ = ["PrefixCache"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a lease is wanted for."""

    namespace: Namespace
    tokens: bytes
    num_required: int
    num_spare: int
    retention: Retention
    now: float


class PrefixCache(PathTree):
    """A tree whose paths are leased to sequences. Tokens are given packed (see tokens.py)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        tier: Tier = Tier.DEVICE,
        policy: EvictionPolicy | None = None,
        quotas: Mapping[Account, Quota] | None = None,
        on_evict: OnEvict = ignore_eviction,
    ) -> None:
        """As PathTree."""
        policy = policy or LeastRecentlyUsed()
        super().__init__(num_blocks, block_size, tier=tier, policy=policy, quotas=quotas, on_evict=on_evict)
        self.num_copied = 0  # blocks, since the start
        self.policy = policy
        self._planned: list[tuple[BlockCopy, Node]] = []  # copies not yet taken; their sources are locked
        self._running: list[Node] = []  # sources of the copies that were taken

    def num_held_tokens(self, leases: Iterable[tuple[Lease, int]]) -> int:
        """Tokens in held blocks, shared ones once, given every lease with its number of computed tokens."""
        private = sum(
            num_computed - lease.num_committed + len(lease.duplicates) * self.block_size
            for lease, num_computed in leases
        )
        return self.ledger.num_locked_tokens + private

    def acquire(
        self,
        namespace: Namespace,
        tokens: bytes,
        *,
        max_new: int,
        num_required: int,
        now: float,
        num_spare: int = 0,
        retention: Retention = PLAIN,
        whole_blocks: bool = False,
        max_matched: int | None = None,
    ) -> Lease | None:
        """Hold the longest cached prefix of `tokens`, and blocks for up to `max_new` of the tokens after it.

        At least one token is left to compute: without it there are no logits. None, with nothing held, when
        blocks for `num_required` tokens in all cannot be had now, with room for `num_spare` more in the pool.
        A match that ends inside a block plans a copy, or takes the block over when it is nobody's and ends
        where the match does; with `whole_blocks` it is cut down to the block's start instead. No more than
        `max_matched` tokens are looked for; None: all but one.
        """
        found = self.find(namespace, bytearray(matchable(tokens, max_matched)))
        without_tail = Match(found.node, found.num_tokens, None, 0)
        asked = _Asked(namespace, tokens, num_required, num_spare, retention, now)
        lease = self._hold(without_tail if whole_blocks else found, asked)
        if lease is None and found.tail is not None:
            # The block that the match ends in may be the very one that must make room.
            lease = self._hold(without_tail, asked)
        if lease is None:
            return None
        num_wanted = min(lease.num_matched + max_new, len(tokens) // TOKEN_BYTES, num_required)
        is_grown = self.grow(lease, num_wanted)
        assert is_grown, "room for all that is required was there a moment ago"
        return lease

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """Add blocks until there are slots for `num_tokens`. False, changing nothing, if too few are left."""
        if not self.can_grow(lease, num_tokens):
            return False
        num_missing = self.num_blocks_for(num_tokens) - len(lease.blocks)
        lease.blocks += self.ledger.allocate(num_missing, lease.namespace)
        return True

    def can_grow(self, lease: Lease, num_tokens: int) -> bool:
        """Whether `grow` would find room."""
        num_missing = self.num_blocks_for(num_tokens) - len(lease.blocks)
        return num_missing <= 0 or self.ledger.has_room(lease.namespace, num_missing)

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """Make computed tokens findable: those from `lease.num_committed` on, which the lease's blocks hold.

        A partial block that is a prefix of another in the tree waits until it differs: hand it again then.
        """
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

    def keep(self, lease: Lease) -> None:
        """Let what a lease has committed stay when it is released, and what it commits from now on."""
        lease.is_passing = False
        self._keep_path(lease.node)

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

    def check_invariants(self, leases: Iterable[Lease], holds: Iterable[Hold] = ()) -> None:
        """Assert from scratch what must always hold, given every lease and hold that is out. Slow."""
        leases = list(leases)
        nodes = list(self.root.walk())
        for node in nodes:
            node.check_invariants(self.block_size)
        sources = [source for _, source in self._planned] + self._running
        holders = [lease.node for lease in leases] + sources + [hold.node for hold in holds]
        paths = [id(node) for holder in holders for node in holder.path()]
        assert all(node.num_locks == paths.count(id(node)) for node in nodes), "a lock is lost or left"
        for lease in leases:
            assert sum(node.num_tokens for node in lease.node.path()) == lease.num_committed
        private = [(lease.namespace, self._private_blocks(lease)) for lease in leases]
        self.ledger.check_invariants(nodes, private)

    def _private_blocks(self, lease: Lease) -> list[BlockId]:
        return lease.duplicates + lease.blocks[self.num_blocks_for(lease.num_committed) :]

    def _hold(self, found: Match, asked: _Asked) -> Lease | None:
        """Lock a match and turn it into a lease without new blocks, if what it lacks can be had."""
        namespace, retention = asked.namespace, asked.retention
        tail = None if found.tail is None else self.first_block(found.tail)
        takes_over = tail is not None and self._can_take_over(tail, found.num_tail_tokens, asked)
        holder = found.node if tail is None else tail
        self.ledger.lock(holder)
        num_blocks = self.num_blocks_for(found.num_tokens) + takes_over
        num_missing = self.num_blocks_for(asked.num_required) - num_blocks
        if not self.ledger.has_room(namespace, num_missing, self.num_blocks_for(asked.num_spare)):
            self.ledger.unlock(holder)
            return None
        node = holder if takes_over else found.node
        num_matched = found.num_tokens + found.num_tail_tokens
        prior_uses = 0
        if not retention.is_side:
            path = list(reversed(list(holder.path())))
            prior_uses = self.policy.note_match(namespace, asked.tokens, path, asked.now)
            # A run that merely begins like the prompt, and differs in its first block, is not used by it.
            is_whole = tail is not None and num_matched == len(asked.tokens) // TOKEN_BYTES - 1
            self._note_use(holder if is_whole or takes_over else node, retention, asked.now)
            self._keep_path(node)  # of a block that is copied, the copy will be committed
        num_committed = num_matched if takes_over else found.num_tokens
        lease = Lease(
            namespace,
            node,
            num_matched,
            num_committed,
            asked.now,
            retention,
            prior_uses,
            is_passing=retention.is_side,
        )
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

    def _keep_path(self, node: Node) -> None:
        for part in node.path():
            part.is_passing = False

    def _can_take_over(self, tail: Node, num_matched: int, asked: _Asked) -> bool:
        """Whether the block that a match ends in may be written further by the lease that matched it."""
        is_whole = tail.num_tokens == num_matched
        is_free = tail.is_leaf and tail.num_locks == 0
        return is_whole and is_free and tail.namespace == asked.namespace and not asked.retention.is_side

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
        node = lease.node
        node.extend(piece, self.block_size)
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
        if self._is_own_end(node, lease):
            node.extend(piece, self.block_size)
            node.blocks.append(block)
        else:
            self._add_child(lease, piece, block)
        self.ledger.num_locked_tokens += len(piece) // TOKEN_BYTES
        return True

    def _is_own_end(self, node: Node, lease: Lease) -> bool:
        """Whether a run may simply grow: its lease alone holds it, and both stay or go alike."""
        is_alone = not node.is_root and node.is_leaf and node.num_locks == 1
        return is_alone and node.namespace == lease.namespace and node.is_passing == lease.is_passing

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
            is_passing=lease.is_passing,
            serial=next(self.serials),
        )
        parent.attach(child)
        lease.node = child
        before = child.sibling_before()
        if before is not None:
            self.ledger.drop_if_prefix(before)

    def _descend(self, lease: Lease, child: Node) -> None:
        """Move the lease's path one block down, onto a block that another sequence computed."""
        is_longer = len(child.blocks) > 1
        lease.node = child.split(1, self.block_size, next(self.serials)) if is_longer else child
        lease.node.is_passing = lease.node.is_passing and lease.is_passing
        self.ledger.lock_one(lease.node)
