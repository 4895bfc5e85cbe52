"""What clients ask of the cache, answered from it: places, pins, parks, pages of the tree, events.

Stands between the messages and the cache; knows no socket and moves no block. What takes a while is an
errand, which is looked at again until it is done.
"""

from dataclasses import dataclass

from engine.cache_messages import (
    CacheEvent,
    CacheEvents,
    CacheReport,
    Forget,
    Forgotten,
    ListNodes,
    Locate,
    Moved,
    NodePage,
    NodeView,
    Park,
    Pin,
    Pinned,
    Prefetch,
    Residency,
    TierUse,
    Unpin,
)
from engine.sequence import Sequence
from prefix_cache.events import Event
from prefix_cache.hashing import block_name, root_name
from prefix_cache.movement import Movement
from prefix_cache.pins import PinsFull
from prefix_cache.plan import Tier
from prefix_cache.tiers import TieredCache
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["CacheService", "Errand", "report_of"]

_MAX_PAGE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Errand:
    """A park or a prefetch that somebody waits for."""

    ticket: int
    movement: Movement
    started: float


class CacheService:
    """One cache's answers. `now` is the core's clock, in seconds."""

    def __init__(self, cache: TieredCache, bytes_per_block: int, fingerprint: bytes) -> None:
        self._cache = cache
        self._bytes_per_block = bytes_per_block
        self._fingerprint = fingerprint

    def locate(self, message: Locate) -> Residency:
        """Where a prefix lies."""
        trees = (self._cache.device, *self._cache.colder)
        uses = {tree.tier: tree.use_of(message.namespace, message.tokens) for tree in trees}
        return Residency(
            ticket=message.ticket,
            num_tokens=len(message.tokens) // TOKEN_BYTES,
            tiers={
                tier.value: TierUse(
                    num_tokens=use.num_tokens,
                    num_blocks=use.num_blocks,
                    num_shared_blocks=use.num_shared_blocks,
                    num_bytes=use.num_blocks * self._bytes_per_block,
                    num_shared_bytes=use.num_shared_blocks * self._bytes_per_block,
                )
                for tier, use in uses.items()
            },
        )

    def park(self, message: Park, now: float) -> Errand:
        """Begin to park a prefix."""
        return Errand(message.ticket, self._cache.park(message.namespace, message.tokens), now)

    def prefetch(self, message: Prefetch, now: float) -> Errand:
        """Begin to bring a prefix back."""
        return Errand(message.ticket, self._cache.prefetch(message.namespace, message.tokens, now), now)

    def moved(self, errand: Errand, now: float) -> Moved:
        """The answer to an errand that is done."""
        movement = errand.movement
        assert movement.is_done, "an errand is answered when it is done"
        return Moved(
            ticket=errand.ticket,
            num_device_tokens=movement.found.get(Tier.DEVICE, 0),
            num_host_tokens=movement.found.get(Tier.HOST, 0),
            num_disk_tokens=movement.found.get(Tier.DISK, 0),
            num_to_compute=movement.num_to_compute,
            num_parked_tokens=movement.num_parked_tokens,
            num_moved_blocks=movement.num_moved_blocks,
            num_moved_bytes=movement.num_moved_blocks * self._bytes_per_block,
            seconds=now - errand.started,
            message=movement.message,
        )

    def forget(self, message: Forget) -> Forgotten:
        """Drop what a prefix alone holds."""
        freed = self._cache.forget(message.namespace, message.tokens, message.num_kept)
        return Forgotten(ticket=message.ticket, num_blocks={tier.value: freed[tier] for tier in freed})

    def pin(self, message: Pin, now: float) -> Pinned:
        """Keep a prefix on the device, if there is room for pins."""
        until = None if message.seconds is None else now + message.seconds
        try:
            hold = self._cache.pins.set(message.name, message.namespace, message.tokens, until)
        except PinsFull as refusal:
            return Pinned(ticket=message.ticket, num_tokens=0, message=str(refusal))
        return Pinned(ticket=message.ticket, num_tokens=hold.num_tokens, num_blocks=len(hold.blocks))

    def unpin(self, message: Unpin) -> Pinned:
        """End a pin."""
        self._cache.pins.end(message.name)
        return Pinned(ticket=message.ticket, num_tokens=0)

    def list_nodes(self, message: ListNodes, now: float) -> NodePage:
        """A page of one tier's tree."""
        tree = self._cache.tree(Tier(message.tier))
        limit = max(1, min(message.limit, _MAX_PAGE))
        nodes = [] if tree is None else [node for node in tree.nodes() if node.serial > message.after]
        nodes.sort(key=lambda node: node.serial)
        page = nodes[:limit]
        return NodePage(
            ticket=message.ticket,
            nodes=[
                NodeView(
                    serial=node.serial,
                    parent=node.parent.serial if node.parent is not None else 0,
                    start=node.num_tokens_before,
                    num_tokens=node.num_tokens,
                    num_blocks=len(node.blocks),
                    num_children=node.num_children,
                    num_locks=node.num_locks,
                    num_pins=node.num_pins,
                    num_uses=node.num_uses,
                    priority=node.priority,
                    namespace=node.namespace.hex(),
                    age_seconds=max(0.0, now - node.created),
                    idle_seconds=max(0.0, now - node.last_used),
                )
                for node in page
            ],
            next=page[-1].serial if len(nodes) > limit else None,
        )

    def watch(self, is_on: bool) -> None:
        """Begin or cease to remember events."""
        self._cache.events.is_on = is_on
        if not is_on:
            self._cache.events.take()

    def events(self) -> CacheEvents | None:
        """What happened since the last call; None if nothing did."""
        events, num_lost = self._cache.events.take()
        if not events and not num_lost:
            return None
        return CacheEvents([self._named(event) for event in events], num_lost)

    def _named(self, event: Event) -> CacheEvent:
        """Hashes the path from the root: for those who listen, never inside a step."""
        block_bytes = self._cache.block_size * TOKEN_BYTES
        parts = iter(event.namespaces)
        namespace, part_end = next(parts)
        name, parent, names = root_name(self._fingerprint), None, []
        for start in range(0, len(event.tokens), block_bytes):
            while start // TOKEN_BYTES >= part_end:
                namespace, part_end = next(parts)
            if start // TOKEN_BYTES == event.start and start:
                parent = name.hex()
            name = block_name(name, namespace, event.tokens[start : start + block_bytes])
            if start // TOKEN_BYTES >= event.start:
                names.append(name.hex())
        return CacheEvent(
            kind=event.kind,
            tier=event.tier.value,
            namespace=namespace,
            start=event.start,
            num_tokens=len(event.tokens) // TOKEN_BYTES - event.start,
            parent=parent,
            names=names,
        )


def report_of(sequence: Sequence) -> CacheReport | None:
    """How a sequence's prompt was found when it first ran."""
    explanation = sequence.explanation
    if explanation is None:
        return None
    num_found = sum(explanation.found.values())
    return CacheReport(
        num_device_tokens=explanation.found.get(Tier.DEVICE, 0),
        num_host_tokens=explanation.found.get(Tier.HOST, 0),
        num_disk_tokens=explanation.found.get(Tier.DISK, 0),
        num_computed_tokens=sequence.num_prompt_tokens - num_found,
        num_copied_blocks=explanation.num_copied_blocks,
        parted_at=explanation.parted_at,
        reason=explanation.reason,
    )
