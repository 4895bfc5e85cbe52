"""The paths of one tier's tree: finding them, holding them, telling who hangs from them, taking them away.

Owns which block holds which tokens. A node that is held has held ancestors; what is taken away is held by
nobody.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from prefix_cache.eviction import EvictionPolicy, is_evictable
from prefix_cache.ledger import Ledger
from prefix_cache.node import SHARED, Namespace, Node
from prefix_cache.plan import BlockId, Tier
from prefix_cache.quota import Account, Quota
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["Hold", "Match", "OnEvict", "PathTree", "Use", "ignore_eviction"]

OnEvict = Callable[[Node, int], None]  # a node, and how many blocks it loses from its end


@dataclass(frozen=True, slots=True)
class Match:
    """The part of a prefix found in the tree: a path to `node`, then some tokens of `tail`'s first block.

    `num_tokens` is where `node` ends, on a block boundary. `tail` is None when the match ends there too.
    """

    node: Node
    num_tokens: int
    tail: Node | None
    num_tail_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A locked path: its blocks in order, up to the end of what was found."""

    node: Node
    blocks: tuple[BlockId, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Use:
    """What one tier has of a prefix; a block is shared when anything else hangs from it."""

    num_tokens: int
    num_blocks: int
    num_shared_blocks: int


def ignore_eviction(node: Node, num_blocks: int) -> None:
    """Tell nobody."""


class PathTree:
    """One radix tree over one pool of blocks. Tokens are given packed (see tokens.py)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        tier: Tier = Tier.DEVICE,
        policy: EvictionPolicy,
        quotas: Mapping[Account, Quota] | None = None,
        on_evict: OnEvict = ignore_eviction,
    ) -> None:
        """`on_evict` is told of a node and how many blocks it loses from its end, before it loses them."""
        self.tier = tier
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.ledger = Ledger(
            num_blocks, block_size, policy, quotas or {}, on_evict, tells_freed=tier is Tier.DISK
        )
        self.root = Node(namespace=b"")
        self.serials = count(1)

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens lie in the tree. Holds nothing and refreshes nothing."""
        found = self.find(namespace, bytearray(tokens))
        return found.num_tokens + found.num_tail_tokens

    def kept_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens lie in the tree to stay. Holds nothing and refreshes nothing."""
        _, num_tokens = self._kept_part(self.find(namespace, bytearray(tokens)))
        return num_tokens

    def hold(self, namespace: Namespace, tokens: bytes) -> Hold:
        """Lock the path of what lies in the tree of a prefix to stay, so that its blocks can be read."""
        found = self.find(namespace, bytearray(tokens))
        node, num_tokens = self._kept_part(found)
        node = self.first_block(node) if node is found.tail else node
        self.ledger.lock(node)
        blocks = [block for part in reversed(list(node.path())) for block in part.blocks]
        return Hold(node, tuple(blocks), num_tokens)

    def first_block(self, node: Node) -> Node:
        """A run's first block as a node of its own, so that holding it holds nothing else of the run."""
        return node.split(1, self.block_size, next(self.serials)) if len(node.blocks) > 1 else node

    def let_go(self, hold: Hold, *, now: float | None = None) -> None:
        """Undo a `hold`. `now` marks the path as used."""
        self.ledger.unlock(hold.node, now=now)

    def use_of(self, namespace: Namespace, tokens: bytes) -> Use:
        """What lies here of a prefix, and how much of that others hang from. Changes no standing."""
        found = self.find(namespace, bytearray(tokens))
        node = found.tail or found.node
        num_tokens = found.num_tokens + found.num_tail_tokens
        is_shared = not node.is_leaf or (found.tail is not None and node.num_tokens > found.num_tail_tokens)
        num_shared = 0
        num_below = self.num_blocks_for(found.num_tail_tokens)  # of the tail, only the first block
        for part in node.path():
            num_blocks = num_below or len(part.blocks)
            num_below = 0
            is_shared = is_shared or part.num_children > 1
            num_shared += num_blocks if is_shared else 0
        return Use(num_tokens, self.num_blocks_for(num_tokens), num_shared)

    def goes_on(self, namespace: Namespace, tokens: bytes) -> bool:
        """Whether anything that the namespace may see follows what lies here of a prefix."""
        found = self.find(namespace, bytearray(tokens))
        if found.tail is not None:
            return found.tail.num_tokens > found.num_tail_tokens or not found.tail.is_leaf
        return SHARED in found.node.children or namespace in found.node.children

    def drop(self, namespace: Namespace, tokens: bytes, *, rested_since: float = float("inf")) -> None:
        """Let a path leave, from its end up, as long as nobody holds it, nothing hangs from it, and it was
        not used after `rested_since`.
        """
        found = self.find(namespace, bytearray(tokens))
        node = found.node
        if found.tail is not None and found.tail.num_tokens == found.num_tail_tokens:
            node = found.tail
        while (
            not node.is_root
            and is_evictable(node)
            and node.namespace == namespace
            and node.last_used <= rested_since
        ):
            parent = node.parent
            assert parent is not None, "only the root has no parent"
            self.ledger.remove(node)
            node = parent

    def cut(self, namespace: Namespace, tokens: bytes) -> None:
        """Remove all that lies at and below the last block of a path, unless somebody holds it."""
        start = (len(tokens) // TOKEN_BYTES - 1) // self.block_size * self.block_size
        above = self.find(namespace, bytearray(tokens[: start * TOKEN_BYTES])).node
        child, length = above.nearest_child(namespace, bytearray(tokens[start * TOKEN_BYTES :]))
        if child is None or length < len(tokens) // TOKEN_BYTES - start or child.num_locks:
            return
        self._clear_below(child)
        self.ledger.remove(child)

    def remove(self, namespace: Namespace, tokens: bytes, num_kept: int) -> tuple[int, bool]:
        """Take a path away for good, from its end up, but for the blocks of its first `num_kept` tokens; with
        all that hangs below its end, and below a shared path at every place.

        Returns how many blocks became free, and whether nothing is left that somebody holds: else it is to
        be tried again. What pins keep, and where others part from the path, is left.
        """
        end_kept = self.num_blocks_for(num_kept) * self.block_size
        kept = bytearray(tokens[: end_kept * TOKEN_BYTES])
        self.find(namespace, kept, sees_leaving=True)  # splits the path there
        found = self.find(namespace, bytearray(tokens), sees_leaving=True)
        num_found = found.num_tokens + found.num_tail_tokens
        is_exhausted = num_found == len(tokens) // TOKEN_BYTES
        node, num_freed = found.node, 0
        if found.tail is not None and (is_exhausted or found.tail.num_tokens == found.num_tail_tokens):
            node = found.tail
        takes_below = is_exhausted or namespace == SHARED
        is_held = False
        while (
            not node.is_root
            and node.namespace == namespace
            and node.num_pins == 0
            and node.num_tokens_before >= num_kept
        ):
            parent = node.parent
            assert parent is not None, "only the root has no parent"
            node.is_leaving = namespace == SHARED
            if takes_below:
                num_freed += self._clear_below(node)
            takes_below = namespace == SHARED
            is_held = is_held or node.num_locks > 0
            if not node.is_leaf and not is_held:
                break
            if not is_held:
                num_freed += len(node.blocks)
                self.ledger.remove(node)
            elif namespace != SHARED:
                break
            node = parent
        keep = num_kept - node.num_tokens_before
        spans = node.namespace == namespace and node.num_pins == 0 and 0 < keep < node.num_tokens
        if not is_held and spans and node.is_leaf:
            is_held = node.num_locks > 0
            num_freed += 0 if is_held else self._trim(node, keep)
        return num_freed, not is_held

    def pinned_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens of a prefix pins keep."""
        found = self.find(namespace, bytearray(tokens))
        node = found.tail or found.node
        while not node.is_root and node.num_pins == 0:
            assert node.parent is not None, "only the root has no parent"
            node = node.parent
        return (
            0
            if node.is_root
            else min(node.num_tokens_before + node.num_tokens, found.num_tokens + found.num_tail_tokens)
        )

    def pin(self, namespace: Namespace, tokens: bytes) -> Hold:
        """Hold a path for as long as a pin lasts; see `unpin`."""
        hold = self.hold(namespace, tokens)
        self.ledger.pin(hold.node)
        self.ledger.unlock(hold.node)
        return hold

    def unpin(self, hold: Hold) -> None:
        """Undo a `pin`."""
        self.ledger.unpin(hold.node)

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children."""
        return self.root.walk()

    def restore(
        self, parent: Node | None, namespace: Namespace, tokens: bytes, blocks: list[BlockId], now: float
    ) -> Node:
        """Hang a run that lay in these blocks before this tree began below a node (None: the root)."""
        node = Node(
            namespace, bytearray(tokens), blocks, created=now, last_used=now, serial=next(self.serials)
        )
        (parent or self.root).attach(node)
        self.ledger.adopt(node)
        return node

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self.block_size)

    def find(self, namespace: Namespace, tokens: bytearray, *, sees_leaving: bool = False) -> Match:
        """Walk as far as tokens agree. A node that the match leaves in its middle is split there.

        Where a shared run and an own one both agree, the way is taken that goes on longer; a shared one, if
        they are equal. So what is found does not depend on how runs are split.
        """
        node, position = self.root, 0
        while True:
            rest = tokens[position * TOKEN_BYTES :]
            child, length = self._best_child(node, namespace, rest, sees_leaving=sees_leaving)
            if child is None:
                return Match(node, position, None, 0)
            num_blocks, num_tail = divmod(length, self.block_size)
            if num_blocks == len(child.blocks):
                node, position = child, position + length
                continue
            if num_blocks:
                node = child.split(num_blocks, self.block_size, next(self.serials))
                position += num_blocks * self.block_size
            return Match(node, position, child if num_tail else None, num_tail)

    def _best_child(
        self, node: Node, namespace: Namespace, rest: bytearray, *, sees_leaving: bool
    ) -> tuple[Node | None, int]:
        shared, shared_length = node.nearest_of(SHARED, rest, sees_leaving=sees_leaving)
        if namespace == SHARED:
            return shared, shared_length
        own, own_length = node.nearest_of(namespace, rest, sees_leaving=sees_leaving)
        if shared is None or own is None:
            return (own, own_length) if shared is None else (shared, shared_length)
        own_reach = _own_reach(own, own_length, rest, sees_leaving=sees_leaving)
        if own_reach <= shared_length:
            return shared, shared_length
        shared_reach = _shared_reach(shared, shared_length, namespace, rest, sees_leaving=sees_leaving)
        return (own, own_length) if own_reach > shared_reach else (shared, shared_length)

    def _kept_part(self, found: Match) -> tuple[Node, int]:
        """The last node of what was found that does not pass, and how many tokens lie up to there."""
        node = found.tail or found.node
        num_tokens = found.num_tokens + found.num_tail_tokens
        while node.is_passing and node.parent is not None:
            num_tokens = node.num_tokens_before
            node = node.parent
        return node, num_tokens

    def _trim(self, node: Node, num_kept: int) -> int:
        """Cut an unheld leaf down to what is kept of it; returns the number of blocks freed.

        What lies on the disk says how many tokens it holds, so there a block goes whole.
        """
        if self.tier is Tier.DISK:
            num_kept = num_kept // self.block_size * self.block_size
        num_freed = len(node.blocks) - self.num_blocks_for(num_kept)
        self.ledger.trim(node, num_kept)
        return num_freed

    def _clear_below(self, node: Node) -> int:
        """Remove all that hangs below a node and that nobody holds; returns the number of blocks."""
        num_freed = 0
        for below in reversed(list(node.walk())):
            if is_evictable(below):
                num_freed += len(below.blocks)
                self.ledger.remove(below)
        return num_freed


def _own_reach(child: Node, length: int, rest: bytearray, *, sees_leaving: bool) -> int:
    """How many tokens agree along the runs of one namespace, of which `length` in the first one."""
    reach, node, position = length, child, 0
    while length == node.num_tokens:
        position += length
        below, length = node.nearest_of(
            child.namespace, rest[position * TOKEN_BYTES :], sees_leaving=sees_leaving
        )
        if below is None:
            break
        node, reach = below, position + length
    return reach


def _shared_reach(
    child: Node, length: int, namespace: Namespace, rest: bytearray, *, sees_leaving: bool
) -> int:
    """How many tokens agree along shared runs, and a namespace's own ones below any of them."""
    best, node, position = length, child, 0
    while length == node.num_tokens:
        position += length
        after = rest[position * TOKEN_BYTES :]
        own, own_length = node.nearest_of(namespace, after, sees_leaving=sees_leaving)
        if own is not None:
            best = max(best, position + _own_reach(own, own_length, after, sees_leaving=sees_leaving))
        below, length = node.nearest_of(SHARED, after, sees_leaving=sees_leaving)
        if below is None:
            break
        node, best = below, max(best, position + length)
    return best
