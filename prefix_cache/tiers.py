"""Device, host and disk as one cache: what lies where, what moves, and what waits for it.

Each tier is a radix tree of its own, closed under prefixes. What a colder tier has of a prompt is promoted
into the blocks of the lease that asked for it; what a lease leaves behind is written to the colder tiers that
may hold it, so that eviction is free. Decides only: transfers are carried out by others, beside the steps,
and told here when they have ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefix_cache.events import Events
from prefix_cache.explain import Remembers, explain
from prefix_cache.lease import PLAIN, Lease, Retention
from prefix_cache.movement import Movement
from prefix_cache.node import SHARED, Namespace
from prefix_cache.parking import Resting
from prefix_cache.pins import Pins
from prefix_cache.plan import BlockCopy, BlockId, Tier, Transfer
from prefix_cache.promotions import Loading, Promotions, find_pieces
from prefix_cache.swap import SwapRates
from prefix_cache.tokens import TOKEN_BYTES, matchable
from prefix_cache.tree import PrefixCache
from prefix_cache.writes import Prefix, Write, Writes

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
        self._remembers = remembers
        self._resting = Resting(park_after)
        self._promotions = Promotions(fingerprint)
        self._writes = Writes((device, *colder), fingerprint, self.events, disk_for_all=disk_for_all)
        self._prefetches: dict[Lease, Movement] = {}
        self._leaving: list[Prefix] = []  # forgotten prefixes that go as soon as nobody holds them
        self._lacking: set[Lease] = set()  # leases that could not grow: no new copy may hold blocks

    @property
    def block_size(self) -> int:
        """Token slots in a block."""
        return self.device.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks on the device."""
        return self.device.num_blocks

    @property
    def is_pressed(self) -> bool:
        """Whether a sequence that runs lacks blocks."""
        return bool(self._lacking)

    @property
    def num_moving(self) -> int:
        """Transfers that were taken and are not over: what they hold will come home."""
        return self._promotions.num_out + len(self._writes.chunks)

    @property
    def num_waiting_writes(self) -> int:
        """Prefixes that wait to be written to colder tiers."""
        return self._writes.num_waiting

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
        num_spare: int = 0,
        retention: Retention = PLAIN,
        max_matched: int | None = None,
    ) -> Lease | None:
        """As PrefixCache.acquire; what colder tiers have is brought into the lease if that pays.

        Then `is_loading` holds for a while, and `lease.num_matched` is final when it does not any more.
        """
        known = matchable(tokens, max_matched)
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
            num_spare=num_spare,
            now=now,
            retention=retention,
            whole_blocks=bool(pieces),
            max_matched=max_matched,
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
            self._promotions.begin(lease, known, pieces)
        else:
            lease.explanation.num_copied_blocks = int(lease.num_matched > lease.num_committed)
            self.events.tell_copy(lease, known)
        self.counters.num_recomputed_tokens += sum(piece.end - piece.start for piece in found[cut:])
        return lease

    def is_loading(self, lease: Lease) -> bool:
        """Whether blocks of a lease are still on their way."""
        return self._promotions.is_loading(lease)

    def grow(self, lease: Lease, num_tokens: int) -> bool:
        """As PrefixCache.grow."""
        is_grown = self.device.grow(lease, num_tokens)
        if is_grown:
            self._lacking.discard(lease)
        else:
            self._lacking.add(lease)
        return is_grown

    def can_grow(self, lease: Lease, num_tokens: int) -> bool:
        """As PrefixCache.can_grow."""
        return self.device.can_grow(lease, num_tokens)

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """As PrefixCache.commit."""
        before = lease.num_committed
        self.device.commit(lease, tokens)
        self._tell_committed(lease, before)

    def keep(self, lease: Lease) -> None:
        """As PrefixCache.keep."""
        num_kept = self.device.kept_length(lease.namespace, lease.node.path_tokens())
        self.device.keep(lease)
        self._tell_committed(lease, num_kept)

    def release(self, lease: Lease, now: float) -> None:
        """As PrefixCache.release. A lease that loads is let go when the copies that run have ended."""
        self._lacking.discard(lease)
        if not self.is_loading(lease) or self._promotions.abandon(lease):
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
        while len(taken) < max_transfers and (transfer := self._promotions.take()) is not None:
            taken.append(transfer)
        if len(taken) < max_transfers and not self.is_pressed:
            transfer = self._writes.take(now)
            if transfer is not None:
                taken.append(transfer)
        return taken

    def finish(self, transfer: Transfer, num_done: int, now: float, *, is_damaged: bool = False) -> None:
        """A transfer is over: its first `num_done` copies were carried out. `is_damaged` says that the source
        of the next one was not what it should have been.
        """
        if not self._promotions.knows(transfer):
            self._writes.finish(transfer, num_done, now)
        else:
            self._finish_promotion(transfer, num_done, now, is_damaged=is_damaged)
        self._retry_leaving()

    @property
    def is_forgetting(self) -> bool:
        """Whether records are to be erased, or a copy keeps something that was forgotten from going."""
        disk = self.tree(Tier.DISK)
        has_erased = disk is not None and bool(disk.ledger.freed)
        return has_erased or bool(self._leaving and self.num_moving)

    def take_erased(self) -> list[BlockId]:
        """Blocks of the disk that became free since the last call, and whose records must go: what they say
        would be found again after a restart.
        """
        disk = self.tree(Tier.DISK)
        if disk is None or not disk.ledger.freed:
            return []
        erased = sorted(disk.ledger.freed)
        disk.ledger.freed.clear()
        return erased

    def refuse_writes(self, tier: Tier, message: str) -> None:
        """A tier takes nothing more, for the reason given."""
        self._writes.refuse(tier, message)

    def tend(self, now: float) -> None:
        """Park what has rested long enough, and end pins whose time is over. To be called now and then."""
        self.pins.expire(now)
        self._retry_leaving()
        for node, persists in self._resting.due(now):
            tiers = self._writes.tiers_for(persists)
            if tiers:
                self.counters.num_parked += 1
                self._writes.add(
                    Write(node.namespace, node.path_tokens(), tiers[-1], drops_rested=node.last_used)
                )

    # What clients ask.

    def park(self, namespace: Namespace, tokens: bytes) -> Movement:
        """Write a prefix to the coldest tier there is, and let it leave the device."""
        movement = self._movement(namespace, tokens)
        if not self.colder:
            movement.end("there is no colder tier")
            return movement
        end = max(movement.found.values()) * TOKEN_BYTES
        tier = self.colder[-1].tier
        self._writes.add(Write(namespace, tokens[:end], tier, drops_rested=float("inf"), movement=movement))
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
        retention = Retention(persists=movement.found.get(Tier.DISK, 0) > 0)
        lease = self.acquire(
            namespace, asked, max_new=0, num_required=num_tokens, now=now, retention=retention
        )
        if lease is None:
            movement.num_to_compute = num_tokens - movement.found[Tier.DEVICE]
            movement.end("the device has no room now")
            return movement
        self._prefetches[lease] = movement
        if not self.is_loading(lease):
            self._end_prefetch(lease, now)
        return movement

    def forget(self, namespace: Namespace, tokens: bytes, num_kept: int = 0) -> Mapping[Tier, int]:
        """Take a prefix away from every tier, but for its first `num_kept` tokens and what others part from;
        answers the blocks that became free at once. What is in use, or being copied, goes when it is not.

        A prefix that was shared goes with all that hangs from it: left where it is, it would tell tenants of
        each other.
        """
        prefix = Prefix(namespace, tokens, num_kept)
        if self._remembers is not None:
            self._remembers.forget(namespace, tokens, num_kept)
        freed, is_gone = self._remove(prefix)
        if not is_gone:
            self._leaving.append(prefix)
        return freed

    def _retry_leaving(self) -> None:
        self._leaving = [prefix for prefix in self._leaving if not self._remove(prefix)[1]]

    def _remove(self, prefix: Prefix) -> tuple[Mapping[Tier, int], bool]:
        """Take away of a prefix what nobody holds; and whether nothing is left that somebody holds."""
        if prefix.namespace == SHARED:
            # The colder tiers know no pins: what another shared prefix keeps here stays there, too.
            kept = max(prefix.num_kept, self.device.pinned_length(SHARED, prefix.tokens))
            prefix = Prefix(SHARED, prefix.tokens, kept)
        self._writes.forget(prefix)
        freed, is_gone = {}, True
        for tree in (self.device, *self.colder):
            freed[tree.tier], is_clear = tree.remove(prefix.namespace, prefix.tokens, prefix.num_kept)
            is_gone = is_gone and is_clear
        return freed, is_gone

    def check_invariants(self, leases: Iterable[Lease]) -> None:
        """Assert what must always hold in every tier, given every lease that is out but our own. Slow."""
        out = {id(lease): lease for lease in (*leases, *self._promotions.leases, *self._prefetches)}
        chunks = self._writes.chunks
        holds = [(chunk.source, chunk.hold) for chunk in chunks]
        holds += [*self._promotions.holds, *((self.device, hold) for hold in self.pins.holds)]
        self.device.check_invariants(out.values(), [hold for tree, hold in holds if tree is self.device])
        for tree in self.colder:
            tree.check_invariants(
                [chunk.lease for chunk in chunks if chunk.target is tree],
                [hold for owner, hold in holds if owner is tree],
            )

    def _tell_committed(self, lease: Lease, before: int) -> None:
        """Blocks that have become full since so many tokens were committed, but for those that pass."""
        if self.events.is_on:
            num_kept = sum(node.num_tokens for node in lease.node.path() if not node.is_passing)
            first, last = (num // self.block_size * self.block_size for num in (before, num_kept))
            self.events.tell("committed", Tier.DEVICE, lease.node, first, last)

    def _movement(self, namespace: Namespace, tokens: bytes) -> Movement:
        movement = Movement(len(tokens) // TOKEN_BYTES)
        for tree in (self.device, *self.colder):
            movement.found[tree.tier] = tree.kept_length(namespace, tokens)
        return movement

    def _rest(self, lease: Lease, now: float) -> None:
        """Release a lease on the device; what it leaves may be written to colder tiers, and parked later."""
        node, retention = lease.node, lease.retention
        while node.is_passing and node.parent is not None:
            node = node.parent
        self.device.release(lease, now)
        if retention.is_side or node.is_root or node.parent is None:
            return
        self._resting.add(node, retention.persists, now)
        tokens = node.path_tokens()
        for tier in self._writes.tiers_for(retention.persists):
            if tier is Tier.DISK and lease.namespace == SHARED:
                continue  # it is computed anew at each start, and must not outlive its being shared
            self._writes.add(Write(lease.namespace, tokens, tier))

    def _finish_promotion(self, transfer: Transfer, num_done: int, now: float, *, is_damaged: bool) -> None:
        if is_damaged:
            self.counters.num_damaged_blocks += 1
            self._promotions.cut_damaged(transfer, num_done)
        loading = self._promotions.finish(transfer, num_done, now)
        if loading is not None:
            self._end_loading(loading, now)

    def _end_loading(self, loading: Loading, now: float) -> None:
        """Everything that a lease waited for has arrived, or will not."""
        lease = loading.lease
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
