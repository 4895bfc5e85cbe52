"""Whoever says how many tokens are worth proposing, as the scheduler knows it."""

from typing import Protocol

from engine.sequence import Sequence

__all__ = ["Lookahead", "NoLookahead"]


class Lookahead(Protocol):
    """How many tokens are worth proposing; it learns from what became of those that were."""

    def num_tokens(self, sequence: Sequence, num_running: int) -> int:
        """At most so many for this sequence, in a step beside so many others."""
        ...

    def note(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """What became of a sequence's proposals."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        ...


class NoLookahead:
    """Nothing is proposed."""

    def num_tokens(self, sequence: Sequence, num_running: int) -> int:
        """None."""
        return 0

    def note(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing was remembered."""
