"""Prefixes on their way to colder tiers, a few blocks at a time.

Nothing is held while a prefix waits here: each chunk is planned when the worker has room for it, from what is
there by then, so eviction is never in the way of a write that has not begun. A prefix that is complete on its
tier costs one look. Where a write also parks, the device's copy is dropped at its end.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefix_cache.disk_index import path_records
from prefix_cache.events import Events
from prefix_cache.lease import Lease
from prefix_cache.movement import Movement
from prefix_cache.node import Namespace
from prefix_cache.paths import Hold
from prefix_cache.plan import BlockRecord, Tier, Transfer, copies_along
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["Chunk", "Prefix", "Write", "Writes"]

_CHUNK_BLOCKS = 32
_FORGOTTEN = "it was forgotten meanwhile"
_MAX_WAITING = 1024  # prefixes; beyond, the oldest that nobody waits for is forgotten


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix to be forgotten, but for its first `num_kept` tokens."""

    namespace: Namespace
    tokens: bytes
    num_kept: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A prefix to write to a tier."""

    namespace: Namespace
    tokens: bytes
    tier: Tier
    drops_rested: float | None = None  # when written, what has rested since then leaves the device
    movement: Movement | None = None

    def is_part_of(self, other: "Write") -> bool:
        """Whether nobody waits for this, and somebody waits for a write that does all of it."""
        return (
            self.movement is None
            and other.movement is not None
            and (self.namespace, self.tier) == (other.namespace, other.tier)
            and other.tokens.startswith(self.tokens)
        )

    def belongs_to(self, prefix: Prefix) -> bool:
        """Whether this writes anything of a prefix beyond what is kept of that."""
        return (
            self.namespace == prefix.namespace
            and min(len(self.tokens), len(prefix.tokens)) > prefix.num_kept * TOKEN_BYTES
            and (prefix.tokens.startswith(self.tokens) or self.tokens.startswith(prefix.tokens))
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

    def __init__(
        self, trees: Sequence[PrefixCache], fingerprint: bytes, events: Events, *, disk_for_all: bool
    ) -> None:
        self._trees = trees
        self._fingerprint = fingerprint
        self._events = events
        self._disk_for_all = disk_for_all
        self._waiting: deque[Write] = deque()
        self._refused: dict[Tier, str] = {}  # tiers that take nothing more, and why
        self._out: dict[Transfer, Chunk] = {}  # one at most
        self._forgotten: dict[Write, int] = {}  # of which a chunk is out, and the tokens that are kept

    @property
    def num_waiting(self) -> int:
        """Prefixes that wait."""
        return len(self._waiting)

    @property
    def chunks(self) -> Collection[Chunk]:
        """What is being copied."""
        return self._out.values()

    def tiers_for(self, persists: bool) -> list[Tier]:
        """The colder tiers that may hold a conversation now, the coldest last."""
        may_go_anywhere = persists or self._disk_for_all
        return [
            tree.tier
            for tree in self._trees[1:]
            if tree.tier not in self._refused and (may_go_anywhere or tree.tier is not Tier.DISK)
        ]

    def refuse(self, tier: Tier, message: str) -> None:
        """A tier takes nothing more: end all writes to it."""
        self._refused[tier] = message
        for write in [each for each in self._waiting if each.tier is tier]:
            self._waiting.remove(write)
            if write.movement is not None:
                write.movement.end(message)

    def add(self, write: Write) -> None:
        """Queue a prefix; those that somebody waits for go first, and are answered at once if refused."""
        if write.movement is None:
            self._waiting.append(write)
            if len(self._waiting) > _MAX_WAITING:
                self._forget_oldest()
        elif write.tier in self._refused:
            write.movement.end(self._refused[write.tier])
        else:
            # What was to be written anyway is written for who waits.
            self._waiting = deque(each for each in self._waiting if not each.is_part_of(write))
            self._waiting.appendleft(write)

    def forget(self, prefix: Prefix) -> None:
        """End the writes of a prefix, or of a part of it that is longer than what is kept: that much is still
        written.
        """
        ended = [write for write in self._waiting if write.belongs_to(prefix)]
        self._waiting = deque(write for write in self._waiting if not write.belongs_to(prefix))
        for write in ended:
            self._cut(write, prefix.num_kept)
        self._forgotten.update(
            {chunk.write: prefix.num_kept for chunk in self.chunks if chunk.write.belongs_to(prefix)}
        )

    def take(self, now: float) -> Transfer | None:
        """The next chunk to write. One at a time, so that none is written twice, or held by another's chunk
        when it should leave.
        """
        while self._waiting and not self._out:
            write = self._waiting.popleft()
            planned = self._plan(write, now)
            if planned is not None:
                transfer, chunk = planned
                self._out[transfer] = chunk
                return transfer
            self._end(write)
        return None

    def finish(self, transfer: Transfer, num_done: int, now: float) -> None:
        """A chunk is over."""
        chunk = self._out.pop(transfer)
        write, lease, movement = chunk.write, chunk.lease, chunk.write.movement
        chunk.commit(num_done)
        self._events.tell("demoted", write.tier, lease.node, lease.num_matched, lease.num_committed)
        chunk.let_go(now)
        waiter = next((each for each in self._waiting if write.is_part_of(each)), write)
        if waiter.movement is not None:
            waiter.movement.num_moved_blocks += num_done
        if write in self._forgotten:
            self._cut(write, self._forgotten.pop(write))
        elif num_done == len(transfer.copies):
            if waiter is write:
                self._waiting.appendleft(write)
        elif movement is not None:
            movement.end(f"the {write.tier.value} tier could not be written")

    def _cut(self, write: Write, num_kept: int) -> None:
        """Of a write that was forgotten only the beginning is still wanted."""
        if write.movement is not None:
            write.movement.end(_FORGOTTEN)
        if num_kept:
            self._waiting.append(Write(write.namespace, write.tokens[: num_kept * TOKEN_BYTES], write.tier))

    def _forget_oldest(self) -> None:
        oldest = next((each for each in self._waiting if each.movement is None), None)
        if oldest is not None:
            self._waiting.remove(oldest)

    def _end(self, write: Write) -> None:
        """Nothing more of a write can be written."""
        num_there = self._tree(write.tier).match_length(write.namespace, write.tokens)
        if write.drops_rested is not None and num_there == len(write.tokens) // TOKEN_BYTES:
            self._trees[0].drop(write.namespace, write.tokens, rested_since=write.drops_rested)
        if write.movement is not None:
            write.movement.num_parked_tokens = num_there
            write.movement.end()

    def _tree(self, tier: Tier) -> PrefixCache:
        return next(tree for tree in self._trees if tree.tier is tier)

    def _plan(self, write: Write, now: float) -> tuple[Transfer, Chunk] | None:
        """The write's next chunk; None when it is complete, or cannot go on."""
        target = self._tree(write.tier)
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
        copies = copies_along(
            (source.tier, hold.blocks),
            (target.tier, lease.blocks),
            first=first,
            num_tokens=hold.num_tokens,
            block_size=block_size,
        )
        records: tuple[BlockRecord, ...] = ()
        if target.tier is Tier.DISK:
            namespaces = lease.node.path_namespaces()
            namespaces += [write.namespace] * (len(lease.blocks) - len(namespaces))
            records = path_records(namespaces, first, tokens, block_size, self._fingerprint)
        transfer = Transfer(source.tier, target.tier, copies, records)
        return transfer, Chunk(write, source, target, hold, lease, hold.num_tokens)

    def _source_beyond(self, write: Write, num_there: int, target: PrefixCache) -> PrefixCache | None:
        """The warmest tier that has more of the prefix than the target."""
        for tree in self._trees:
            if tree is target:
                return None
            if tree.kept_length(write.namespace, write.tokens) > num_there:
                return tree
        return None
