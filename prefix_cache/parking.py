"""Which conversations have rested long enough to leave the device.

Leases end in the order of time, so a plain queue is in order too. An entry whose node was used again, or has
left the tree, is passed over when its time comes: its next rest has an entry of its own.
"""

from collections import deque
from collections.abc import Iterator

from prefix_cache.node import Node

__all__ = ["Resting"]


class Resting:
    """Leaves by the time at which their last lease ended."""

    def __init__(self, park_after: float | None) -> None:
        """`park_after` in seconds; None: nothing is ever due."""
        self._park_after = park_after
        self._queue: deque[tuple[float, Node, bool]] = deque()

    def add(self, node: Node, persists: bool, now: float) -> None:
        """A lease whose path ended here has ended."""
        if self._park_after is not None:
            self._queue.append((now, node, persists))

    def due(self, now: float) -> Iterator[tuple[Node, bool]]:
        """Nodes that nobody has used for long enough, and whether they may go to the disk; each once."""
        while self._queue and self._park_after is not None and self._queue[0][0] + self._park_after <= now:
            since, node, persists = self._queue.popleft()
            if node.parent is not None and node.num_locks == 0 and node.last_used <= since:
                yield node, persists
