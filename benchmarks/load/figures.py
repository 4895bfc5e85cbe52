"""Figures of a run from its records: percentiles, rates, goodput. Pure; times in seconds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from benchmarks.load.record import Record

__all__ = [
    "SHARES",
    "Distribution",
    "FailureCount",
    "Figures",
    "Target",
    "distribution",
    "measure",
    "percentile",
]

SHARES = (0.5, 0.9, 0.95, 0.99)  # the percentiles that are told


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some values, in short."""

    count: int
    mean: float
    percentiles: tuple[float, ...]  # one for each of SHARES


@dataclass(frozen=True, slots=True)
class Target:
    """What a request must meet to count as good, in seconds; None asks nothing."""

    first_token: float | None = None
    per_token: float | None = None

    def is_met(self, record: Record) -> bool:
        """Whether it was answered whole, its first text came in time, and its mean time a token is met.

        An answer without a mean time a token (fewer than two) meets any target for it.
        """
        return (
            record.failure is None
            and self._is_in_time(record.first_token)
            and (self.per_token is None or record.per_token is None or record.per_token <= self.per_token)
        )

    def _is_in_time(self, first_token: float | None) -> bool:
        return self.first_token is None or (first_token is not None and first_token <= self.first_token)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How often requests failed in one way, and what was said the first time."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Distributions and rates are of answered requests; a run of none has empty distributions."""

    seconds: float  # from the run's begin to the last answer
    num_sent: int
    num_answered: int
    num_unsent: int  # turns that an earlier failure of their conversation left unasked
    num_tokens: int
    num_untold: int  # answered requests whose tokens are counted events, for want of usage
    num_asked_tokens: int  # of answered requests: what their answers should have had
    num_prompt_tokens: int
    num_cached_tokens: int | None  # None where no answer told
    failures: tuple[FailureCount, ...]  # the most frequent kind first
    distributions: Mapping[
        str, Distribution | None
    ]  # by name, in the order of a report; None without a value
    requests_per_second: float
    tokens_per_second: float
    good_per_second: float | None  # None without a target
    good_share: float | None  # of the requests sent
    max_lag: float  # the longest that a request was sent after its planned time

    @property
    def hit_rate(self) -> float | None:
        """Cached of prompt tokens, over answered requests. One that does not tell counts as none cached,
        where another tells: servers leave the field out when it is 0.
        """
        if self.num_cached_tokens is None or not self.num_prompt_tokens:
            return None
        return self.num_cached_tokens / self.num_prompt_tokens


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of sorted `values` lie: the one at place share x (n - 1), counted from 0,
    and between two places their line (Hyndman and Fan's definition 7, which NumPy uses too). Needs a value.
    """
    place = share * (len(values) - 1)
    below = floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """The values that there are, in short; None if there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Distribution(
        len(known), sum(known) / len(known), tuple(percentile(known, each) for each in SHARES)
    )


def measure(
    records: Sequence[Record], *, seconds: float, num_unsent: int = 0, target: Target | None = None
) -> Figures:
    """The figures of a run that took so many seconds."""
    answered = [record for record in records if record.failure is None]
    cached = [record.num_cached_tokens for record in answered if record.num_cached_tokens is not None]
    num_tokens = sum(record.num_tokens for record in answered)
    num_good = None if target is None else sum(map(target.is_met, records))
    return Figures(
        seconds=seconds,
        num_sent=len(records),
        num_answered=len(answered),
        num_unsent=num_unsent,
        num_tokens=num_tokens,
        num_untold=sum(not record.tells_tokens for record in answered),
        num_asked_tokens=sum(record.num_asked_tokens for record in answered),
        num_prompt_tokens=sum(record.num_prompt_tokens for record in answered),
        num_cached_tokens=sum(cached) if cached else None,
        failures=_failures(records),
        distributions=_distributions(answered),
        requests_per_second=_rate(len(answered), seconds),
        tokens_per_second=_rate(num_tokens, seconds),
        good_per_second=None if num_good is None else _rate(num_good, seconds),
        good_share=None if num_good is None else num_good / max(1, len(records)),
        max_lag=max((record.sent - record.planned for record in records), default=0.0),
    )


def _distributions(answered: Sequence[Record]) -> dict[str, Distribution | None]:
    return {
        "first_token_first_turn": distribution(each.first_token for each in answered if each.turn == 0),
        "first_token_later_turns": distribution(each.first_token for each in answered if each.turn > 0),
        "between_tokens": distribution(gap for each in answered for gap in each.gaps),
        "between_tokens_of_a_request": distribution(each.per_token for each in answered),
        "end_to_end": distribution(each.end_to_end for each in answered),
        "normalized_latency": distribution(each.normalized_latency for each in answered),
    }


def _failures(records: Sequence[Record]) -> tuple[FailureCount, ...]:
    failures = [record.failure for record in records if record.failure is not None]
    examples = {each.kind: each.detail for each in reversed(failures)}
    counts = Counter(each.kind for each in failures)
    return tuple(FailureCount(kind, count, examples[kind]) for kind, count in counts.most_common())


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
