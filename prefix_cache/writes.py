"""Prefixes on their way to colder tiers, a few blocks at a time.

Nothing is held while a prefix waits here: each chunk is planned when the worker has room for it, from what is
there by then, so eviction is never in the way of a write that has not begun. A prefix that is complete on its
tier costs one look. Where a write also parks, the device's copy is dropped at its end.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from prefix_cache.disk_index import path_records
from prefix_cache.lease import Lease
from prefix_cache.movement import Movement
from prefix_cache.node import Namespace
from prefix_cache.paths import Hold
from prefix_cache.plan import BlockCopy, BlockRecord, Tier, Transfer
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["Chunk", "Write", "Writes"]

_CHUNK_BLOCKS = 32
_MAX_WAITING = 1024  # prefixes; beyond, the oldest that nobody waits for is forgotten


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A prefix to write to a tier."""

    namespace: Namespace
    tokens: bytes
    tier: Tier
    drops_rested: float | None = None  # when written, what has rested since then leaves the device
    movement: Movement | None = None

    def belongs_to(self, namespace: Namespace, tokens: bytes, num_kept: int) -> bool:
        """Whether all that this writes is of a prefix, and some of it beyond its first `num_kept` tokens."""
        return (
            self.movement is None
            and self.namespace == namespace
            and len(self.tokens) > num_kept * TOKEN_BYTES
            and tokens.startswith(self.tokens)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The blocks of a write that are being copied; both ends are held."""

    write: Write
    source: PrefixCache
    target: PrefixCache
    hold: Hold
    lease: Lease
    end: int  # tokens of the prefix that lie on the target's tier when all copies are done

    def commit(self, num_done: int) -> None:
        """Make findable what has arrived."""
        start = self.lease.num_matched // self.target.block_size
        reached = min(self.end, (start + num_done) * self.target.block_size)
        tokens = self.write.tokens[self.lease.num_committed * TOKEN_BYTES : reached * TOKEN_BYTES]
        self.target.commit(self.lease, tokens)

    def let_go(self, now: float) -> None:
        """Release both ends."""
        self.target.release(self.lease, now)
        self.source.let_go(self.hold)


class Writes:
    """The queue of prefixes to write, over the trees of all tiers, warmest first."""

    def __init__(self, trees: Sequence[PrefixCache], fingerprint: bytes) -> None:
        self._trees = trees
        self._fingerprint = fingerprint
        self._waiting: deque[Write] = deque()

    def __len__(self) -> int:
        """Prefixes that wait."""
        return len(self._waiting)

    def add(self, write: Write) -> None:
        """Queue a prefix; those that somebody waits for go first."""
        if write.movement is not None:
            self._waiting.appendleft(write)
            return
        self._waiting.append(write)
        if len(self._waiting) > _MAX_WAITING:
            oldest = next((each for each in self._waiting if each.movement is None), None)
            if oldest is not None:
                self._waiting.remove(oldest)

    def put_back(self, write: Write) -> None:
        """Go on with a write whose chunk has ended."""
        self._waiting.appendleft(write)

    def take(self) -> Write | None:
        """The next prefix to look at."""
        return self._waiting.popleft() if self._waiting else None

    def refuse(self, tier: Tier, message: str) -> None:
        """End all writes to a tier that takes no more."""
        for write in [each for each in self._waiting if each.tier is tier]:
            self._waiting.remove(write)
            if write.movement is not None:
                write.movement.end(message)

    def forget(self, namespace: Namespace, tokens: bytes, num_kept: int) -> None:
        """Drop the writes of a prefix, or of a part of it that is longer than what is kept."""
        self._waiting = deque(
            write for write in self._waiting if not write.belongs_to(namespace, tokens, num_kept)
        )

    def plan(self, write: Write, now: float) -> tuple[Transfer, Chunk] | None:
        """The write's next chunk; None when it is complete, or cannot go on."""
        target = next(tree for tree in self._trees if tree.tier is write.tier)
        block_size = target.block_size
        num_there = target.match_length(write.namespace, write.tokens)
        source = self._source_beyond(write, num_there, target)
        if source is None:
            return None
        first = num_there // block_size
        end = min((first + _CHUNK_BLOCKS) * block_size, len(write.tokens) // TOKEN_BYTES)
        hold = source.hold(write.namespace, write.tokens[: end * TOKEN_BYTES])
        tokens = write.tokens[: hold.num_tokens * TOKEN_BYTES]
        lease = target.acquire(
            write.namespace,
            tokens,
            max_new=hold.num_tokens,
            num_required=hold.num_tokens,
            now=now,
            whole_blocks=True,
        )
        if lease is None:
            source.let_go(hold)
            if write.movement is not None:
                write.movement.message = f"the {write.tier.value} tier is full of what is in use"
            return None
        first = lease.num_matched // block_size
        copies = tuple(
            BlockCopy(
                source.tier,
                hold.blocks[place],
                target.tier,
                lease.blocks[place],
                min(block_size, hold.num_tokens - place * block_size),
            )
            for place in range(first, len(hold.blocks))
        )
        records: tuple[BlockRecord, ...] = ()
        if target.tier is Tier.DISK:
            records = path_records(hold.node, first, tokens, block_size, self._fingerprint)
        transfer = Transfer(source.tier, target.tier, copies, records)
        return transfer, Chunk(write, source, target, hold, lease, hold.num_tokens)

    def _source_beyond(self, write: Write, num_there: int, target: PrefixCache) -> PrefixCache | None:
        """The warmest tier that has more of the prefix than the target."""
        for tree in self._trees:
            if tree is target:
                return None
            if tree.match_length(write.namespace, write.tokens) > num_there:
                return tree
        return None
