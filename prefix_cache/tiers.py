"""Device, host and disk as one cache: what lies where, what moves, and what waits for it.

Each tier is a radix tree of its own, closed under prefixes. What a colder tier has of a prompt is promoted
into the blocks of the lease that asked for it; what a lease leaves behind is written to the colder tiers that
may hold it, so that eviction is free. Decides only: transfers are carried out by others, beside the steps,
and told here when they have ended.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefix_cache.events import Events
from prefix_cache.explain import Remembers, explain
from prefix_cache.lease import PLAIN, Lease, Retention
from prefix_cache.movement import Movement
from prefix_cache.node import Namespace
from prefix_cache.parking import Resting
from prefix_cache.pins import Pins
from prefix_cache.plan import BlockCopy, BlockId, Tier, Transfer
from prefix_cache.promotions import Loading, Part, Piece, find_pieces, plan_loading
from prefix_cache.swap import SwapRates
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache
from prefix_cache.writes import Chunk, Write, Writes

__all__ = ["TierCounters", "TieredCache"]


@dataclass(slots=True)
class TierCounters:
    """What has moved since the start."""

    num_promoted_tokens: int = 0
    num_recomputed_tokens: int = 0  # that lay on a colder tier and were cheaper to compute again
    num_damaged_blocks: int = 0
    num_parked: int = 0  # prefixes that left the device because they rested


class TieredCache:
    """The trees of all tiers, the device's first. Tokens are given packed (see tokens.py)."""

    def __init__(
        self,
        device: PrefixCache,
        colder: Sequence[PrefixCache] = (),
        *,
        rates: SwapRates | None = None,
        fingerprint: bytes = b"",
        disk_for_all: bool = False,
        park_after: float | None = None,
        remembers: Remembers | None = None,
        num_kept_free: int = 0,
        events: Events | None = None,
    ) -> None:
        """`colder` from the host to the disk. `park_after` in seconds; None: nothing is parked by itself.
        `num_kept_free` blocks of the device are never pinned.
        """
        assert all(tree.block_size == device.block_size for tree in colder), "tiers exchange whole blocks"
        self.device = device
        self.colder = tuple(colder)
        self.counters = TierCounters()
        self.pins = Pins(device, num_kept_free)
        self.events = events or Events(device.block_size)
        self._rates = rates or SwapRates(1.0, {})
        self._fingerprint = fingerprint
        self._disk_for_all = disk_for_all
        self._writes = Writes((device, *colder), fingerprint)
        self._remembers = remembers
        self._resting = Resting(park_after)
        self._refused: dict[Tier, str] = {}  # tiers that take nothing more, and why
        self._loadings: dict[Lease, Loading] = {}
        self._incoming: deque[tuple[Loading, Part]] = deque()  # promotions that nobody has taken yet
        self._moving: dict[Transfer, tuple[Loading, Part] | Chunk] = {}  # taken, and not yet over
        self._prefetches: dict[Lease, Movement] = {}
        self._erased: list[BlockId] = []  # disk blocks whose records must go
        self._is_writing = False  # a chunk of a write is out
        self._forgotten: list[tuple[Namespace, bytes, int]] = []  # of which a chunk is out
        self._is_pressed = False  # a running sequence lacks blocks: no new copy may hold any

    @property
    def block_size(self) -> int:
        """Token slots in a block."""
        return self.device.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks on the device."""
        return self.device.num_blocks

    @property
    def num_moving(self) -> int:
        """Transfers that were taken and are not over: what they hold will come home."""
        return len(self._moving)

    @property
    def num_waiting_writes(self) -> int:
        """Prefixes that wait to be written to colder tiers."""
        return len(self._writes)

    def tree(self, tier: Tier) -> PrefixCache | None:
        """The tree of a tier, if there is one."""
        return next((tree for tree in (self.device, *self.colder) if tree.tier is tier), None)

    # What the scheduler asks.

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens lie on the device. Holds nothing and refreshes nothing."""
        return self.device.match_length(namespace, tokens)

    def acquire(
        self,
        namespace: Namespace,
        tokens: bytes,
        *,
        max_new: int,
        num_required: int,
        now: float,
        retention: Retention = PLAIN,
    ) -> Lease | None:
        """As PrefixCache.acquire; what colder tiers have is brought into the lease if that pays.

        Then `is_loading` holds for a while, and `lease.num_matched` is final when it does not any more.
        """
        known = tokens[:-TOKEN_BYTES]
        warm = self.device.match_length(namespace, known)
        found = find_pieces(self.colder, namespace, known, warm)
        cut = self._rates.choose_cut([(piece.tree.tier, piece.end - piece.start) for piece in found])
        pieces = found[:cut]
        ahead = pieces[-1].end - warm // self.block_size * self.block_size if pieces else 0
        # Asked before the request is noted: afterwards all of it would be remembered.
        num_remembered = self._remembers.match_length(namespace, known) if self._remembers else 0
        lease = self.device.acquire(
            namespace,
            tokens,
            max_new=ahead + max_new,
            num_required=num_required,
            now=now,
            retention=retention,
            whole_blocks=bool(pieces),
        )
        if lease is None:
            return None
        lease.explanation = explain(
            self.device,
            namespace,
            known,
            num_warm=warm,
            pieces=found,
            num_used=cut,
            num_remembered=num_remembered,
        )
        if pieces:
            self._load(lease, known, pieces)
        else:
            lease.explanation.num_copied_blocks = int(lease.num_matched > lease.num_committed)
            self.events.tell_copy(lease, known)
        self.counters.num_recomputed_tokens += sum(piece.end - piece.start for piece in found[cut:])
        return lease

    def is_loading(self, lease: Lease) -> bool:
        """Whether blocks of a lease are still on their way."""
        return lease in self._loadings

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """As PrefixCache.grow."""
        is_grown = self.device.grow(lease, num_tokens)
        self._is_pressed = not is_grown
        return is_grown

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """As PrefixCache.commit."""
        before = lease.num_committed // self.block_size * self.block_size
        self.device.commit(lease, tokens)
        full = lease.num_committed // self.block_size * self.block_size
        self.events.tell("committed", Tier.DEVICE, lease.node, before, full)

    def release(self, lease: Lease, now: float) -> None:
        """As PrefixCache.release. A lease that loads is let go when the copies that run have ended."""
        self._is_pressed = False
        loading = self._loadings.get(lease)
        if loading is not None:
            self._cancel(loading)
            if not loading.is_over:
                loading.is_abandoned = True
                return
            del self._loadings[lease]
        self._rest(lease, now)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """As PrefixCache.take_copies: copies within the device."""
        return self.device.take_copies()

    def finish_copies(self) -> None:
        """As PrefixCache.finish_copies."""
        self.device.finish_copies()

    def num_held_tokens(self, leases: Iterable[tuple[Lease, int]]) -> int:
        """As PrefixCache.num_held_tokens."""
        return self.device.num_held_tokens(leases)

    # What the owner of the tiers' memory asks.

    def take_transfers(self, max_transfers: int, now: float) -> list[Transfer]:
        """Up to so many transfers to carry out now: promotions first, then one write to a colder tier."""
        taken: list[Transfer] = []
        while self._incoming and len(taken) < max_transfers:
            loading, part = self._incoming.popleft()
            part.is_taken = True
            self._moving[part.transfer] = (loading, part)
            taken.append(part.transfer)
        if len(taken) < max_transfers and not self._is_pressed and not self._is_writing:
            planned = self._plan_write(now)
            if planned is not None:
                taken.append(planned)
        return taken

    def finish(self, transfer: Transfer, num_done: int, now: float, *, is_damaged: bool = False) -> None:
        """A transfer is over: its first `num_done` copies were carried out. `is_damaged` says that the source
        of the next one was not what it should have been.
        """
        entry = self._moving.pop(transfer)
        if isinstance(entry, Chunk):
            self._finish_chunk(entry, transfer, num_done, now)
        else:
            self._finish_part(*entry, num_done, now, is_damaged=is_damaged)

    def erase(self, blocks: Iterable[BlockId]) -> None:
        """Let the records of blocks of the disk that no tree has go."""
        self._erased += blocks

    def take_erased(self) -> list[BlockId]:
        """Blocks of the disk whose records must go, since the last call."""
        erased, self._erased = self._erased, []
        return erased

    def refuse_writes(self, tier: Tier, message: str) -> None:
        """A tier takes nothing more, for the reason given."""
        self._refused[tier] = message
        self._writes.refuse(tier, message)

    def tend(self, now: float) -> None:
        """Park what has rested long enough, and end pins whose time is over. To be called now and then."""
        self.pins.expire(now)
        for node, persists in self._resting.due(now):
            tiers = self._may_hold(persists)
            if tiers:
                self.counters.num_parked += 1
                self._writes.add(
                    Write(node.namespace, node.path_tokens(), tiers[-1], drops_rested=node.last_used)
                )

    # What clients ask.

    def park(self, namespace: Namespace, tokens: bytes) -> Movement:
        """Write a prefix to the coldest tier there is, and let it leave the device."""
        movement = self._movement(namespace, tokens)
        refusal = self._refused.get(self.colder[-1].tier) if self.colder else "there is no colder tier"
        if refusal is not None:
            movement.end(refusal)
            return movement
        end = max(movement.found.values()) * TOKEN_BYTES
        self._writes.add(
            Write(namespace, tokens[:end], self.colder[-1].tier, drops_rested=float("inf"), movement=movement)
        )
        return movement

    def prefetch(self, namespace: Namespace, tokens: bytes, now: float) -> Movement:
        """Bring a prefix back to the device."""
        movement = self._movement(namespace, tokens)
        num_tokens = len(tokens) // TOKEN_BYTES
        if max(movement.found.values()) == movement.found[Tier.DEVICE]:
            movement.num_to_compute = num_tokens - movement.found[Tier.DEVICE]
            movement.end()
            return movement
        # One token more than the prefix, which is never computed: the whole prefix may match then.
        asked = tokens + bytes(TOKEN_BYTES)
        lease = self.acquire(namespace, asked, max_new=0, num_required=num_tokens, now=now)
        if lease is None:
            movement.num_to_compute = num_tokens - movement.found[Tier.DEVICE]
            movement.end("the device has no room now")
            return movement
        self._prefetches[lease] = movement
        if lease not in self._loadings:
            self._end_prefetch(lease, now)
        return movement

    def forget(self, namespace: Namespace, tokens: bytes, num_kept: int = 0) -> Mapping[Tier, int]:
        """Drop from every tier what a prefix alone holds, but for its first `num_kept` tokens; answers the
        blocks that became free. What is being written of it is dropped when the copy has ended.
        """
        self._writes.forget(namespace, tokens, num_kept)
        self._forgotten += [
            (namespace, tokens, num_kept)
            for entry in self._moving.values()
            if isinstance(entry, Chunk) and entry.write.belongs_to(namespace, tokens, num_kept)
        ]
        freed = {}
        for tree in (self.device, *self.colder):
            blocks = tree.drop(namespace, tokens, num_kept=num_kept)
            freed[tree.tier] = len(blocks)
            if tree.tier is Tier.DISK:
                self._erased += blocks
        return freed

    def check_invariants(self, leases: Iterable[Lease]) -> None:
        """Assert what must always hold in every tier, given every lease that is out but our own. Slow."""
        out = {id(lease): lease for lease in (*leases, *self._loadings, *self._prefetches)}
        chunks = [entry for entry in self._moving.values() if isinstance(entry, Chunk)]
        holds = [(chunk.source, chunk.hold) for chunk in chunks]
        holds += [(self.device, hold) for hold in self.pins.holds]
        for loading in self._loadings.values():
            holds += [(part.tree, part.hold) for part in loading.parts if part.num_done is None]
        self.device.check_invariants(out.values(), [hold for tree, hold in holds if tree is self.device])
        for tree in self.colder:
            tree.check_invariants(
                [chunk.lease for chunk in chunks if chunk.target is tree],
                [hold for owner, hold in holds if owner is tree],
            )

    def _plan_write(self, now: float) -> Transfer | None:
        """The next chunk to write. One at a time, so that none is written twice, or held by another's chunk
        when it should leave.
        """
        while (write := self._writes.take()) is not None:
            planned = self._writes.plan(write, now)
            if planned is not None:
                transfer, chunk = planned
                self._moving[transfer] = chunk
                self._is_writing = True
                return transfer
            self._end_write(write)
        return None

    def _load(self, lease: Lease, tokens: bytes, pieces: Sequence[Piece]) -> None:
        loading = plan_loading(lease, tokens, pieces, self._fingerprint)
        self._loadings[lease] = loading
        self._incoming += [(loading, part) for part in loading.parts]

    def _movement(self, namespace: Namespace, tokens: bytes) -> Movement:
        movement = Movement(len(tokens) // TOKEN_BYTES)
        for tree in (self.device, *self.colder):
            movement.found[tree.tier] = tree.match_length(namespace, tokens)
        return movement

    def _rest(self, lease: Lease, now: float) -> None:
        """Release a lease on the device; what it leaves may be written to colder tiers, and parked later."""
        node, retention = lease.node, lease.retention
        self.device.release(lease, now)
        if retention.is_side or node.is_root or node.parent is None:
            return
        self._resting.add(node, retention.persists, now)
        tokens = node.path_tokens()
        for tier in self._may_hold(retention.persists):
            self._writes.add(Write(lease.namespace, tokens, tier))

    def _may_hold(self, persists: bool) -> list[Tier]:
        """The colder tiers that may hold a conversation now."""
        may_go_anywhere = persists or self._disk_for_all
        return [
            tree.tier
            for tree in self.colder
            if tree.tier not in self._refused and (may_go_anywhere or tree.tier is not Tier.DISK)
        ]

    def _cancel(self, loading: Loading) -> None:
        """Drop the promotions of a lease that nobody has taken yet."""
        for part in loading.parts:
            if not part.is_taken:
                part.num_done = 0
                part.tree.let_go(part.hold)
        self._incoming = deque(item for item in self._incoming if item[0] is not loading)

    def _finish_part(
        self, loading: Loading, part: Part, num_done: int, now: float, *, is_damaged: bool
    ) -> None:
        part.num_done = num_done
        part.tree.let_go(part.hold, now=now)
        if is_damaged:
            self.counters.num_damaged_blocks += 1
            end = part.start + (num_done + 1) * self.block_size
            tokens = loading.tokens[: min(end, part.end) * TOKEN_BYTES]
            self._erased += part.tree.cut(loading.lease.namespace, tokens)
        if not loading.is_over:
            return
        lease = loading.lease
        del self._loadings[lease]
        reached = loading.reached(self.block_size)
        self.counters.num_promoted_tokens += reached - lease.num_matched
        self.device.commit(lease, loading.tokens[lease.num_committed * TOKEN_BYTES : reached * TOKEN_BYTES])
        self.events.tell("promoted", Tier.DEVICE, lease.node, lease.num_matched, lease.num_committed)
        lease.num_matched = reached
        if lease.explanation is not None:
            lease.explanation.cut_to(reached)
        if lease in self._prefetches:
            self._end_prefetch(lease, now)
        elif loading.is_abandoned:
            self._rest(lease, now)

    def _end_prefetch(self, lease: Lease, now: float) -> None:
        movement = self._prefetches.pop(lease)
        movement.num_to_compute = movement.num_tokens - lease.num_matched
        movement.num_moved_blocks = -(-lease.num_matched // self.block_size) - (
            movement.found[Tier.DEVICE] // self.block_size
        )
        self._rest(lease, now)
        movement.end()

    def _finish_chunk(self, chunk: Chunk, transfer: Transfer, num_done: int, now: float) -> None:
        self._is_writing = False
        lease = chunk.lease
        chunk.commit(num_done)
        self.events.tell("demoted", chunk.target.tier, lease.node, lease.num_matched, lease.num_committed)
        chunk.let_go(now)
        movement = chunk.write.movement
        if movement is not None:
            movement.num_moved_blocks += num_done
        forgotten = [each for each in self._forgotten if chunk.write.belongs_to(*each)]
        if forgotten:
            self._forgotten.clear()
            for each in forgotten:
                self.forget(*each)
        elif num_done == len(transfer.copies):
            self._writes.put_back(chunk.write)
        elif movement is not None:
            movement.end(f"the {chunk.write.tier.value} tier could not be written")

    def _end_write(self, write: Write) -> None:
        """Nothing more of a write can be written."""
        tree = self.tree(write.tier)
        assert tree is not None, "writes go to tiers that there are"
        num_there = tree.match_length(write.namespace, write.tokens)
        if write.drops_rested is not None and num_there == len(write.tokens) // TOKEN_BYTES:
            self.device.drop(write.namespace, write.tokens, rested_since=write.drops_rested)
        if write.movement is not None:
            write.movement.num_parked_tokens = num_there
            write.movement.end()
