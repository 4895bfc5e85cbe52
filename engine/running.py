"""The sequences that hold blocks, oldest request first."""

from bisect import insort
from collections.abc import Iterator

from engine.sequence import Sequence
from prefix_cache.quota import Account

__all__ = ["RunningSet"]


def _by_age(sequence: Sequence) -> tuple[int, int]:
    return sequence.order, sequence.choice


class RunningSet:
    """Ordered by arrival, so that the last one gives way first and the first one never does."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place; behind those of the same request and choice."""
        insort(self._sequences, sequence, key=_by_age)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out that is in."""
        self._sequences.remove(sequence)

    def count_of(self, account: Account) -> int:
        """How many a tenant has."""
        return sum(sequence.account == account for sequence in self._sequences)

    def youngest(self, account: Account | None = None) -> Sequence:
        """The one that gives way first: of all, or of one tenant, which has one."""
        return next(sequence for sequence in reversed(self._sequences) if account in (None, sequence.account))
