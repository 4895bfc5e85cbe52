"""What is measured of the cache itself, in the units of the clock that its callers use.

Three ages of blocks, named as vLLM names them: how long a block lived, how long it had rested when it was
evicted, and how long it had rested when it was used again.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from prefix_cache.eviction import EvictionPolicy, EvictionQueue
from prefix_cache.history import History
from prefix_cache.node import Namespace, Node

__all__ = ["BOUNDS", "BlockAges", "Histogram", "Observed"]

BOUNDS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)  # seconds


@dataclass(slots=True)
class Histogram:
    """Counts between fixed bounds; the last is of everything above."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(BOUNDS, value)] += times
        self.total += value * times


@dataclass(slots=True)
class BlockAges:
    """Ages of the device's blocks, in seconds."""

    lifetime: Histogram = field(default_factory=Histogram)
    idle_before_evict: Histogram = field(default_factory=Histogram)
    reuse_gap: Histogram = field(default_factory=Histogram)
    now: float = 0.0  # as of the last request

    def note_eviction(self, node: Node, num_blocks: int) -> None:
        """A node loses blocks from its end."""
        self.lifetime.observe(max(0.0, self.now - node.created), num_blocks)
        self.idle_before_evict.observe(max(0.0, self.now - node.last_used), num_blocks)


class Observed:
    """A policy that notes reuse gaps, and what was asked for, on its way to another."""

    def __init__(self, policy: EvictionPolicy, ages: BlockAges, history: History | None) -> None:
        self.inner = policy
        self._ages = ages
        self._history = history

    def make_queue(self) -> EvictionQueue:
        """The other policy's queue."""
        return self.inner.make_queue()

    def note_match(self, namespace: Namespace, tokens: bytes, path: Sequence[Node], now: float) -> int:
        """Note how long the path had rested, and ask the other policy."""
        self._ages.now = now
        for node in path:
            self._ages.reuse_gap.observe(max(0.0, now - node.last_used), len(node.blocks))
        if self._history is not None:
            self._history.note(namespace, tokens, now)
        return self.inner.note_match(namespace, tokens, path, now)
