"""How sequences end: their blocks go back to the cache at once, or when the step in flight has landed."""

from collections.abc import Iterable, Iterator

from engine.lookahead import Lookahead
from engine.sequence import Sequence, Status
from prefix_cache.tiers import TieredCache

__all__ = ["Departures"]


class Departures:
    """Knows whether a step is in flight, and who has ended since it began."""

    def __init__(self, cache: TieredCache, lookahead: Lookahead) -> None:
        self.is_in_flight = False
        self._cache = cache
        self._lookahead = lookahead
        self._leaving: list[Sequence] = []  # ended while the step that computes them is in flight

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._leaving)

    def __len__(self) -> int:
        return len(self._leaving)

    def end(self, sequences: Iterable[Sequence], now: float) -> None:
        """Sequences that are in no queue any more have ended."""
        for sequence in sequences:
            sequence.status = Status.FINISHED
            self._lookahead.forget(sequence)
            if self.is_in_flight:
                self._leaving.append(sequence)
            else:
                self._release(sequence, now)

    def preempt(self, sequence: Sequence, now: float) -> None:
        """One gives way while no step is in flight. What it computed stays cached as long as it can."""
        self._lookahead.forget(sequence)
        self._release(sequence, now)
        sequence.num_computed = 0
        sequence.status = Status.WAITING

    def release_leaving(self, now: float) -> None:
        """The step has landed: give back the blocks of those that ended meanwhile."""
        for sequence in self._leaving:
            self._release(sequence, now)
        self._leaving.clear()

    def _release(self, sequence: Sequence, now: float) -> None:
        if sequence.lease is not None:
            self._cache.release(sequence.lease, now)
            sequence.lease = None
