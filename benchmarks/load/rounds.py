"""Several servers in turn, round after round: their order, and their figures beside each other. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Compared", "Spread", "compare", "order", "spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The same figure of several rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one server over the rounds, and over the first server's of the same rounds."""

    values: Spread | None  # None where no round had it
    ratios: Spread | None  # None for the first server, and where no pair had both


def order(names: Sequence[str], num_rounds: int) -> list[tuple[int, str]]:
    """(round, server): A B A B, rounds counted from 1. What drifts on the machine falls on all alike."""
    return [(number, name) for number in range(1, num_rounds + 1) for name in names]


def spread(values: Sequence[float | None]) -> Spread | None:
    """Median, least and greatest of the values that there are."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def compare(rounds: Mapping[str, Sequence[Mapping[str, float | None]]]) -> dict[str, dict[str, Compared]]:
    """By figure, then by server. `rounds` holds each server's figures, one mapping a round, in one order.

    A ratio is of one round: the server's figure over that of the first server.
    """
    first, *_ = rounds
    names = list(rounds[first][0])
    return {
        name: {
            server: Compared(
                spread([each[name] for each in figures]),
                None if server == first else spread(_ratios(name, figures, rounds[first])),
            )
            for server, figures in rounds.items()
        }
        for name in names
    }


def _ratios(
    name: str, figures: Sequence[Mapping[str, float | None]], base: Sequence[Mapping[str, float | None]]
) -> list[float | None]:
    pairs = [(mine[name], theirs[name]) for mine, theirs in zip(figures, base, strict=True)]
    return [mine / theirs if mine is not None and theirs else None for mine, theirs in pairs]
