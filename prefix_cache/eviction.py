"""Which unlocked leaf goes next: what the ledger asks of a policy, and the default one.

A policy makes queues of unlocked leaves. Leaves of accounts with a quota have queues of their own, so that a
floor can be kept; the standings of all queues of one policy compare with each other. Lower priorities go
first, whatever the policy.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from prefix_cache.node import Namespace, Node

__all__ = ["EvictionPolicy", "EvictionQueue", "LeastRecentlyUsed", "Standing", "is_evictable"]

Standing = tuple[int, float]  # priority, then the policy's value; the lowest goes first


def is_evictable(node: Node) -> bool:
    """Whether a node may go: a leaf of the tree that nobody holds."""
    return node.parent is not None and node.is_leaf and node.num_locks == 0


class EvictionQueue(Protocol):
    """The leaves that compete with each other."""

    def offer(self, node: Node) -> None:
        """Tell that a node may have become an unlocked leaf, or that its standing has changed."""
        ...

    def peek(self) -> Standing | None:
        """The standing of the node that `pop` would return; None when nothing can go."""
        ...

    def pop(self) -> Node | None:
        """The next leaf to go, taken off the queue; None when nothing can go."""
        ...

    def forget(self, node: Node) -> None:
        """Drop a node that left the tree otherwise."""
        ...


class EvictionPolicy(Protocol):
    """What makes the queues of one tier, and is told what is asked for."""

    def make_queue(self) -> EvictionQueue:
        """A queue, empty."""
        ...

    def note_match(self, namespace: Namespace, tokens: bytes, path: Sequence[Node], now: float) -> int:
        """A sequence asks for `tokens`, of which `path` (root first) has some; told before it counts as used.

        Answers how often the tokens after the path were used before, as far as that is remembered: the blocks
        that will hold them begin with this many uses.
        """
        ...


class LeastRecentlyUsed:
    """The default: what has rested longest goes first."""

    def make_queue(self) -> EvictionQueue:
        """A heap by time of last use."""
        return _HeapQueue()

    def note_match(self, namespace: Namespace, tokens: bytes, path: Sequence[Node], now: float) -> int:
        """Remembers nothing."""
        return 0


class _HeapQueue:
    """A heap whose stale entries are skipped when they surface and swept when they are many."""

    def __init__(self) -> None:
        self._heap: list[tuple[Standing, int, Node]] = []
        self._order = count()  # first offered, first gone, among equals
        self._newest: dict[Node, int] = {}  # the entry that counts for each node

    def offer(self, node: Node) -> None:
        if not is_evictable(node):
            return
        entry = next(self._order)
        self._newest[node] = entry
        heappush(self._heap, ((node.priority, node.last_used), entry, node))
        if len(self._heap) > 2 * len(self._newest) + 64:
            self._sweep()

    def peek(self) -> Standing | None:
        while self._heap:
            standing, entry, node = self._heap[0]
            if self._newest.get(node) == entry:
                if is_evictable(node):
                    return standing
                del self._newest[node]
            heappop(self._heap)
        return None

    def pop(self) -> Node | None:
        if self.peek() is None:
            return None
        _, _, node = heappop(self._heap)
        del self._newest[node]
        return node

    def forget(self, node: Node) -> None:
        self._newest.pop(node, None)

    def _sweep(self) -> None:
        self._newest = {node: entry for node, entry in self._newest.items() if is_evictable(node)}
        self._heap = [item for item in self._heap if self._newest.get(item[2]) == item[1]]
        heapify(self._heap)
