"""The figures of a run, against plain definitions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.figures import SHARES, Target, distribution, measure, percentile
from benchmarks.load.record import Failure, Record

seconds = st.floats(0, 1e4, allow_nan=False)


def record(**changes: object) -> Record:
    values = {
        "conversation": 0,
        "turn": 0,
        "planned": 1.0,
        "sent": 1.0,
        "arrivals": (1.5, 1.6, 1.8),
        "ended": 2.0,
        "num_asked_tokens": 3,
        "num_tokens": 3,
        "num_prompt_tokens": 10,
        "num_cached_tokens": None,
    }
    return Record(**{**values, **changes})


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(np.quantile(values, share), rel=1e-9, abs=1e-9)


@given(st.lists(st.none() | seconds, max_size=30))
def test_a_distribution_is_of_the_values_that_there_are(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]

    found = distribution(values)

    if not known:
        assert found is None
    else:
        assert found is not None
        assert found.count == len(known)
        assert found.mean == pytest.approx(sum(known) / len(known))
        assert found.percentiles == pytest.approx(np.quantile(known, SHARES), abs=1e-9)


def test_a_record_knows_its_times() -> None:
    one = record(num_tokens=5)

    assert one.first_token == pytest.approx(0.5)
    assert one.end_to_end == pytest.approx(1.0)
    assert one.per_token == pytest.approx(0.3 / 4)  # five tokens came in three events
    assert one.normalized_latency == pytest.approx(0.2)
    assert list(one.gaps) == pytest.approx([0.1, 0.2])


def test_one_token_or_one_event_has_no_time_between() -> None:
    assert record(num_tokens=1).per_token is None
    assert record(arrivals=(1.5,)).per_token is None
    assert record(arrivals=()).first_token is None
    assert record(num_tokens=0).normalized_latency is None


def test_known_figures_of_a_small_run() -> None:
    failed = record(failure=Failure("HTTP 429", "slow down"), arrivals=(), num_tokens=0)
    later = record(turn=1, sent=2.25, planned=2.0, arrivals=(2.5, 3.0), ended=4.0, num_tokens=2)
    records = [record(), failed, later, replace(failed, failure=Failure("HTTP 429", "again"))]

    figures = measure(records, seconds=4.0, num_unsent=2, target=Target(first_token=0.5, per_token=0.4))

    assert (figures.num_sent, figures.num_answered, figures.num_unsent) == (4, 2, 2)
    assert [(each.kind, each.count, each.example) for each in figures.failures] == [
        ("HTTP 429", 2, "slow down")
    ]
    assert (figures.num_tokens, figures.num_asked_tokens) == (5, 6)
    assert figures.tokens_per_second == 1.25
    assert figures.requests_per_second == 0.5
    assert figures.good_per_second == 0.25  # the later turn has 0.5 s a token
    assert figures.good_share == 0.25
    assert figures.max_lag == 0.25
    counts = {name: each and each.count for name, each in figures.distributions.items()}
    assert counts == {
        "first_token_first_turn": 1,
        "first_token_later_turns": 1,
        "between_tokens": 3,
        "between_tokens_of_a_request": 2,
        "end_to_end": 2,
        "normalized_latency": 2,
    }


def test_a_run_of_nothing_has_figures_too() -> None:
    figures = measure([], seconds=0.0)

    assert figures.tokens_per_second == 0.0
    assert figures.good_share is None
    assert not any(figures.distributions.values())


@pytest.mark.parametrize(
    ("cached", "rate"), [((None, None), None), ((5, None), 0.25), ((5, 10), 0.75), ((0, None), 0.0)]
)
def test_who_does_not_tell_what_was_cached_counts_as_none(
    cached: tuple[int | None, ...], rate: float | None
) -> None:
    assert measure([record(num_cached_tokens=each) for each in cached], seconds=1.0).hit_rate == rate


@pytest.mark.parametrize(
    ("target", "changes", "is_met"),
    [
        (Target(), {}, True),
        (Target(first_token=0.5), {}, True),
        (Target(first_token=0.49), {}, False),
        (Target(per_token=0.16), {}, True),
        (Target(per_token=0.14), {}, False),
        (Target(per_token=0.001), {"num_tokens": 1}, True),
        (Target(first_token=0.5, per_token=0.14), {}, False),
        (Target(first_token=9.0), {"arrivals": ()}, False),
        (Target(per_token=0.14), {"arrivals": ()}, True),
        (Target(), {"failure": Failure("timeout", "")}, False),
    ],
)
def test_a_target_is_met_in_all_that_it_asks(target: Target, changes: dict, is_met: bool) -> None:
    assert target.is_met(record(**changes)) is is_met


@given(st.lists(st.tuples(seconds, st.booleans()), max_size=30), seconds)
def test_goodput_counts_the_requests_that_meet_the_target(
    drawn: list[tuple[float, bool]], limit: float
) -> None:
    failure = Failure("timeout", "")
    records = [
        record(sent=0.0, arrivals=(first,), ended=first, failure=failure if fails else None)
        for first, fails in drawn
    ]
    num_good = sum(first <= limit and not fails for first, fails in drawn)

    figures = measure(records, seconds=2.0, target=Target(first_token=limit))

    assert figures.good_per_second == num_good / 2
    assert figures.good_share == num_good / max(1, len(drawn))
