"""The sequences that wait, a line for each tenant, and in which order each line is to be served.

Within a line: whoever was overtaken as often as may be, then whoever has begun before, then by priority, then
whoever has most in the cache, then by arrival. So no sequence is ever overtaken by more than `max_overtaken`
younger ones of its tenant.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from engine.sequence import Sequence
from prefix_cache.quota import Account

__all__ = ["WaitingLines"]


def _by_arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.order, sequence.choice


class WaitingLines:
    """Who waits. A sequence is in at most one line, once."""

    def __init__(self, max_overtaken: int) -> None:
        self._max_overtaken = max_overtaken
        self._lines: dict[Account, list[Sequence]] = {}

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for line in self._lines.values() for sequence in line)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def accounts(self) -> list[Account]:
        """The tenants of whom anything waits."""
        return list(self._lines)

    def new_of(self, account: Account) -> list[Sequence]:
        """A tenant's sequences that have not begun, oldest first."""
        return [sequence for sequence in self._lines.get(account, ()) if not sequence.has_begun]

    def oldest(self) -> Sequence | None:
        """The one that arrived first, if any waits."""
        return min((line[0] for line in self._lines.values()), key=_by_arrival, default=None)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait, at the place that its arrival gives it."""
        insort(self._lines.setdefault(sequence.account, []), sequence, key=_by_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out that waits."""
        line = self._lines[sequence.account]
        line.remove(sequence)
        if not line:
            del self._lines[sequence.account]

    def start(self, sequence: Sequence) -> None:
        """The same, because it starts: it overtakes whoever came before it."""
        line = self._lines[sequence.account]
        for older in line[: bisect_left(line, _by_arrival(sequence), key=_by_arrival)]:
            older.num_overtaken += 1
        self.remove(sequence)

    def is_due(self, sequence: Sequence) -> bool:
        """Whether no younger one may start before it any more."""
        return sequence.num_overtaken >= self._max_overtaken

    def may_pass(self, sequence: Sequence) -> bool:
        """Whether a sequence may start before all that came earlier: none of those is due."""
        line = self._lines[sequence.account]
        earlier = line[: bisect_left(line, _by_arrival(sequence), key=_by_arrival)]
        return not any(self.is_due(each) for each in earlier)

    def in_order(
        self, account: Account, count_found: Callable[[Sequence], int], max_looked_at: int
    ) -> list[Sequence]:
        """A tenant's sequences as they should start, of those that come first by arrival and priority.

        `count_found` says how many of a sequence's tokens are cached; it is asked of so many at most.
        """
        line = self._lines.get(account, [])

        def by_rank(sequence: Sequence) -> tuple[bool, bool, int]:
            if self.is_due(sequence):
                return False, False, 0
            return True, not sequence.has_begun, sequence.queue_priority

        first = sorted(line, key=by_rank)[:max_looked_at]  # stable: by arrival where ranks are equal
        if len(first) == 1:
            return first
        found = {
            sequence: 0 if self.is_due(sequence) or sequence.weighs_prompt else count_found(sequence)
            for sequence in first
        }
        return sorted(first, key=lambda sequence: (*by_rank(sequence), -found[sequence]))
