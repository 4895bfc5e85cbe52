"""What administrators are told of the cache: its nodes, and what happens to its blocks."""

from typing import Any, Self

import msgspec

from engine.cache_messages import CacheEvent, CacheEvents, NodePage

__all__ = ["EventAnswer", "EventsAnswer", "NodeList"]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of one tier's tree, oldest node first; ids are the nodes' serials."""

    object: str = "list"
    data: list[Any]
    first_id: int | None
    last_id: int | None
    has_more: bool

    @classmethod
    def of(cls, page: NodePage) -> Self:
        """The same in the engine's words."""
        serials = [node.serial for node in page.nodes]
        return cls(
            data=list(page.nodes),
            first_id=serials[0] if serials else None,
            last_id=page.next if page.next is not None else (serials[-1] if serials else None),
            has_more=page.next is not None,
        )


class EventAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to full blocks that follow each other."""

    kind: str
    tier: str
    namespace: str  # hexadecimal; empty: shared by all
    start: int
    num_tokens: int
    parent: str | None
    names: list[str]

    @classmethod
    def of(cls, event: CacheEvent) -> Self:
        """The same in the engine's words."""
        return cls(
            kind=event.kind,
            tier=event.tier,
            namespace=event.namespace.hex(),
            start=event.start,
            num_tokens=event.num_tokens,
            parent=event.parent,
            names=event.names,
        )


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since the last one."""

    object: str = "cache.events"
    events: list[EventAnswer]
    num_lost: int

    @classmethod
    def of(cls, events: CacheEvents) -> Self:
        """The same in the engine's words."""
        return cls(events=[EventAnswer.of(event) for event in events.events], num_lost=events.num_lost)
