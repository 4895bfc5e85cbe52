"""A run's figures as a table for people, as JSON for programs, and as panels of a chart. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.distribution_chart import Panel
from benchmarks.load.figures import SHARES, Distribution, Figures, Target
from benchmarks.load.record import Record

__all__ = ["FLAT", "as_json", "failures", "flat", "panels", "table"]

_TITLES = {
    "first_token_first_turn": "first token, first turn",
    "first_token_later_turns": "first token, later turns",
    "between_tokens": "between tokens, each gap",
    "between_tokens_of_a_request": "between tokens, mean of a request",
    "end_to_end": "end to end",
    "normalized_latency": "end to end / tokens answered",
}

FLAT = {  # what is compared: its name in JSON, and how a table names it
    "tokens_per_second": "output tokens/s",
    "requests_per_second": "requests/s",
    "good_per_second": "goodput, requests/s",
    "good_share": "goodput, share",
    "first_token_first_turn_p50": "first token, first turn, p50, ms",
    "first_token_first_turn_p95": "first token, first turn, p95, ms",
    "first_token_later_turns_p50": "first token, later turns, p50, ms",
    "first_token_later_turns_p95": "first token, later turns, p95, ms",
    "between_tokens_p50": "between tokens, p50, ms",
    "between_tokens_p95": "between tokens, p95, ms",
    "between_tokens_p99": "between tokens, p99, ms",
    "between_tokens_of_a_request_p50": "between tokens, mean of a request, p50, ms",
    "end_to_end_p50": "end to end, p50, ms",
    "normalized_latency_mean": "end to end / tokens answered, mean, ms",
    "hit_rate": "prompt tokens from the cache, share",
}


def table(figures: Figures, target: Target | None) -> str:
    """The whole report of one run, without an end of line."""
    width = max(map(len, _TITLES.values()))
    heads = "".join(f"{f'p{round(100 * share)}':>10}" for share in SHARES)
    lines = [f"{'milliseconds':{width}}{'n':>9}{'mean':>10}{heads}"]
    lines += [_row(_TITLES[name], each, width) for name, each in figures.distributions.items()]
    lines += ["", *_rates(figures, target)]
    return "\n".join([*lines, *failures(figures)])


def failures(figures: Figures) -> list[str]:
    """A line for each kind of failure, with an example of it, and one for what was not sent."""
    lines = [
        f"{'failed':24}{each.count:>10,}  {each.kind}: {' '.join(each.example.split())}"
        for each in figures.failures
    ]
    if figures.num_unsent:
        lines.append(f"{'not sent':24}{figures.num_unsent:>10,}  turns after a failed one")
    return lines or [f"{'failed':24}{0:>10}"]


def flat(figures: Figures) -> dict[str, float | None]:
    """The figures that servers are compared by, in the order of FLAT; times in ms. None: not known."""
    distributions = figures.distributions
    values: dict[str, float | None] = {
        "tokens_per_second": figures.tokens_per_second,
        "requests_per_second": figures.requests_per_second,
        "good_per_second": figures.good_per_second,
        "good_share": figures.good_share,
        "hit_rate": figures.hit_rate,
    }
    for name, each in distributions.items():
        values |= {f"{name}_{key}": value for key, value in _in_ms(each).items()}
    return {name: values[name] for name in FLAT}


def as_json(figures: Figures) -> dict[str, Any]:
    """All figures as plain data; times in ms but for `seconds`."""
    return {
        "seconds": round(figures.seconds, 3),
        "sent": figures.num_sent,
        "answered": figures.num_answered,
        "not_sent": figures.num_unsent,
        "failures": [asdict(each) for each in figures.failures],
        "tokens": figures.num_tokens,
        "answers_without_usage": figures.num_untold,
        "tokens_asked_for": figures.num_asked_tokens,
        "prompt_tokens": figures.num_prompt_tokens,
        "cached_tokens": figures.num_cached_tokens,
        "hit_rate": figures.hit_rate,
        "tokens_per_second": figures.tokens_per_second,
        "requests_per_second": figures.requests_per_second,
        "good_per_second": figures.good_per_second,
        "good_share": figures.good_share,
        "sent_late_max": round(1000 * figures.max_lag, 3),
        **{
            name: {"n": each.count, **_in_ms(each)} if each else None
            for name, each in figures.distributions.items()
        },
    }


def panels(runs: Mapping[str, Sequence[Record]]) -> list[Panel]:
    """Distributions of several servers' answered requests, by server."""
    answered = {name: [each for each in records if each.failure is None] for name, records in runs.items()}
    first = {name: _first_tokens(each for each in all_ if not each.turn) for name, all_ in answered.items()}
    later = {name: _first_tokens(each for each in all_ if each.turn) for name, all_ in answered.items()}
    gaps = {name: [1000 * gap for each in all_ for gap in each.gaps] for name, all_ in answered.items()}
    return [
        Panel("First token, first turn", "ms", first),
        Panel("First token, later turns", "ms", later),
        Panel("Between tokens", "ms", gaps),
    ]


def _first_tokens(records: Iterable[Record]) -> list[float]:
    return [1000 * each.first_token for each in records if each.first_token is not None]


def _row(title: str, each: Distribution | None, width: int) -> str:
    if each is None:
        return f"{title:{width}}{0:>9}{'-':>10}" + f"{'-':>10}" * len(SHARES)
    cells = "".join(f"{1000 * value:>10,.1f}" for value in (each.mean, *each.percentiles))
    return f"{title:{width}}{each.count:>9,}{cells}"


def _rates(figures: Figures, target: Target | None) -> list[str]:
    hit_rate, good = figures.hit_rate, figures.good_per_second
    lines = [
        f"{'output tokens/s':24}{figures.tokens_per_second:>10,.1f}"
        f"  {figures.num_tokens:,} answered of {figures.num_asked_tokens:,} asked for",
        f"{'requests/s':24}{figures.requests_per_second:>10,.2f}"
        f"  {figures.num_answered:,} answered of {figures.num_sent:,} sent, in {figures.seconds:,.2f} s",
    ]
    if figures.num_untold:
        lines.append(
            f"{'without usage':24}{figures.num_untold:>10,}  answers, whose tokens are counted events"
        )
    if target is not None and good is not None and figures.good_share is not None:
        met = f"{figures.good_share:.1%} of those sent: {_aims(target)}"
        lines.append(f"{'goodput, requests/s':24}{good:>10,.2f}  {met}")
    told = "no answer told" if hit_rate is None else f"of {figures.num_prompt_tokens:,} prompt tokens"
    lines.append(f"{'from the cache':24}{'-' if hit_rate is None else f'{hit_rate:.1%}':>10}  {told}")
    lines.append(f"{'sent late, at most, ms':24}{1000 * figures.max_lag:>10,.1f}")
    return lines


def _aims(target: Target) -> str:
    aims = []
    if target.first_token is not None:
        aims.append(f"first token within {1000 * target.first_token:g} ms")
    if target.per_token is not None:
        aims.append(f"tokens every {1000 * target.per_token:g} ms")
    return ", ".join(aims)


def _in_ms(each: Distribution | None) -> dict[str, float | None]:
    names = ["mean", *(f"p{round(100 * share)}" for share in SHARES)]
    if each is None:
        return dict.fromkeys(names)
    return {
        name: round(1000 * value, 4)
        for name, value in zip(names, (each.mean, *each.percentiles), strict=True)
    }
