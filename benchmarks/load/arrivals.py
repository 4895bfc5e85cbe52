"""When conversations begin: by users who take turns, by chance, by a trace, or all at once. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Bursts", "Start", "Times", "Users", "poisson", "scaled"]


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop: so many at once; who has ended one conversation begins the next."""

    count: int


@dataclass(frozen=True, slots=True)
class Times:
    """An open loop: each conversation begins at its own time, whatever the server does."""

    seconds: tuple[float, ...]  # since the run began, one a conversation, never falling


@dataclass(frozen=True, slots=True)
class Bursts:
    """So many at the same instant; when all of them have ended, so many again."""

    size: int


Start = Users | Times | Bursts


def poisson(rate: float, count: int, seed: str) -> tuple[float, ...]:
    """Times of a Poisson process of `rate` arrivals a second: gaps are independent and exponential with mean
    1 / rate. The same seed gives the same times.
    """
    rng = random.Random(f"{seed}/arrivals")
    return tuple(accumulate(rng.expovariate(rate) for _ in range(count)))


def scaled(times: Sequence[float], speed: float) -> tuple[float, ...]:
    """Times of a trace as seconds since its first request, `speed` times as fast, in the order of time."""
    begin = min(times, default=0.0)
    return tuple(sorted((time - begin) / speed for time in times))
