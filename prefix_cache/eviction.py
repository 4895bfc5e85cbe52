"""Which unlocked leaf goes next.

A policy gives each leaf a value; the lowest goes first. The queue is a heap whose stale entries are skipped
when they surface and swept when they are many, so a node may be offered again whenever its standing changes.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from prefix_cache.node import Node

__all__ = ["EvictionPolicy", "EvictionQueue", "least_recently_used"]

EvictionPolicy = Callable[[Node], float]


def least_recently_used(node: Node) -> float:
    """The default: what has rested longest goes first."""
    return node.last_used


def _is_evictable(node: Node) -> bool:
    return node.parent is not None and node.is_leaf and node.num_locks == 0


class EvictionQueue:
    """The unlocked leaves of one tier, in the order in which they go."""

    def __init__(self, policy: EvictionPolicy = least_recently_used) -> None:
        self._policy = policy
        self._heap: list[tuple[float, int, Node]] = []
        self._order = count()  # first offered, first gone, among equals
        self._newest: dict[Node, int] = {}  # the entry that counts for each node

    def offer(self, node: Node) -> None:
        """Tell that a node may have become an unlocked leaf, or that its value has changed."""
        if not _is_evictable(node):
            return
        entry = next(self._order)
        self._newest[node] = entry
        heappush(self._heap, (self._policy(node), entry, node))
        if len(self._heap) > 2 * len(self._newest) + 64:
            self._sweep()

    def pop(self) -> Node | None:
        """The next leaf to go, taken off the queue; None when nothing can go."""
        while self._heap:
            _, entry, node = heappop(self._heap)
            if self._newest.get(node) != entry:
                continue
            del self._newest[node]
            if _is_evictable(node):
                return node
        return None

    def forget(self, node: Node) -> None:
        """Drop a node that left the tree otherwise."""
        self._newest.pop(node, None)

    def _sweep(self) -> None:
        self._newest = {node: entry for node, entry in self._newest.items() if _is_evictable(node)}
        self._heap = [item for item in self._heap if self._newest.get(item[2]) == item[1]]
        heapify(self._heap)
