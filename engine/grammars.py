"""Whoever knows what answers may go on with that must follow a grammar, as the engine's heart knows it."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from engine.sampling.allowed import Allowed
from engine.sampling.rows import Row

__all__ = ["Grammars"]


class Grammars(Protocol):
    """Compiles grammars, and follows answers through them. Any thread may call it."""

    def prepare(self, grammar: str) -> "Future[None]":
        """Begin to compile a grammar, unless it is compiled. Ends in ValueError for one that cannot be
        followed.
        """
        ...

    def begin(self, rows: Sequence[Row]) -> "Future[Allowed] | None":
        """Begin to find what the rows of a step may draw; None if none of them has a grammar."""
        ...

    def close(self) -> None:
        """End what runs for it."""
        ...
