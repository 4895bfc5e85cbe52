"""What happens to blocks, told while somebody listens.

The path's tokens are copied when an event is told, so nothing is told, and nothing copied, without a
listener. Names are hashed by whoever passes the events on, outside the steps.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from prefix_cache.lease import Lease
from prefix_cache.node import Namespace, Node
from prefix_cache.plan import Tier
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["Event", "EventKind", "Events"]

EventKind = Literal["committed", "evicted", "promoted", "demoted", "copied"]

_MAX_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """Blocks from token `start` to the end of `tokens`, on the path that begins at the root."""

    kind: EventKind
    tier: Tier
    namespaces: tuple[tuple[Namespace, int], ...]  # along the path: a namespace, where its part ends
    tokens: bytes  # of the path, packed
    start: int


class Events:
    """A bounded queue between the cache and its listener."""

    def __init__(self, block_size: int) -> None:
        self.is_on = False
        self.num_lost = 0
        self._block_size = block_size
        self._waiting: deque[Event] = deque()

    def tell(self, kind: EventKind, tier: Tier, node: Node, start: int, end: int) -> None:
        """Something happened to the blocks of a node's path between two tokens."""
        if self.is_on and start < end:
            self._add(Event(kind, tier, _parts(node), node.path_tokens()[: end * TOKEN_BYTES], start))

    def tell_eviction(self, tier: Tier, node: Node, num_blocks: int) -> None:
        """A node is about to lose blocks from its end."""
        if self.is_on:
            before = node.num_tokens_before
            first = len(node.blocks) - num_blocks
            self.tell("evicted", tier, node, before + first * self._block_size, before + node.num_tokens)

    def tell_copy(self, lease: Lease, tokens: bytes) -> None:
        """A lease that matched some of the tokens may have copied the block in which the match ends."""
        if self.is_on and lease.num_matched > lease.num_committed:
            parts = (*_parts(lease.node), (lease.namespace, lease.num_matched))
            held = tokens[: lease.num_matched * TOKEN_BYTES]
            self._add(Event("copied", Tier.DEVICE, parts, held, lease.num_committed))

    def take(self) -> tuple[list[Event], int]:
        """What was told since the last call, and how many events were lost."""
        events, lost = list(self._waiting), self.num_lost
        self._waiting.clear()
        self.num_lost = 0
        return events, lost

    def _add(self, event: Event) -> None:
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(event)
        else:
            self.num_lost += 1


def _parts(node: Node) -> tuple[tuple[Namespace, int], ...]:
    parts: list[tuple[Namespace, int]] = []
    position = 0
    for each in reversed(list(node.path())):
        position += each.num_tokens
        if parts and parts[-1][0] == each.namespace:
            parts.pop()
        parts.append((each.namespace, position))
    return tuple(parts)
