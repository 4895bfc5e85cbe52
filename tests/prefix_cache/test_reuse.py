"""Rates of reuse: from what became of blocks to what keeping one is worth."""

from math import exp

import pytest

from prefix_cache.history import Cohort
from prefix_cache.reuse import BOUNDS, NUM_BUCKETS, ReuseRates, bucket_of


def test_an_age_lies_in_the_bucket_that_begins_at_or_before_it() -> None:
    for bucket, bound in enumerate(BOUNDS):
        assert bucket_of(bound) == bucket
        assert bucket_of(bound + 0.01) == bucket
    assert bucket_of(-5.0) == 0
    assert bucket_of(1e12) == NUM_BUCKETS - 1


def test_a_rate_is_reuses_over_block_seconds() -> None:
    rates = ReuseRates(1)
    cohort = Cohort(0, 0.0, 4)
    rates.add(cohort)
    rates.advance(2.5)
    rates.end_rest(cohort, 3, 2.5, is_reused=True)
    cohort.num_blocks = 1
    rates.refresh(2.5)

    # Nobody was used before 2 s; then three of four were, within half a second each.
    rate = 3 / (3 * 0.5 + 1 * 0.5)
    waiting = 2.0
    chance = 1 - exp(-rate * (BOUNDS[4] - 2.0))
    assert rates.value(0, 3) == pytest.approx(rate)
    assert rates.value(0, 0) == pytest.approx(chance / (waiting + chance / rate))
    assert rates.value(0, 4) == rates.value(1, 0) == 0.0


def test_reuse_just_where_a_bucket_begins_has_a_rate() -> None:
    rates = ReuseRates(0)
    cohort = Cohort(0, 0.0, 1)
    rates.add(cohort)
    rates.advance(4.0)
    rates.end_rest(cohort, 1, 4.0, is_reused=True)
    cohort.num_blocks = 0
    rates.refresh(4.0)

    assert rates.value(0, bucket_of(4.0)) > rates.value(0, 0) > 0.2


def test_blocks_that_rest_on_lower_the_rate() -> None:
    values = []
    for num_resting in (0, 10):
        rates = ReuseRates(0)
        used, resting = Cohort(0, 0.0, 1), Cohort(0, 0.0, num_resting)
        rates.add(used)
        rates.add(resting)
        rates.advance(10.0)
        rates.end_rest(used, 1, 10.0, is_reused=True)
        used.num_blocks = 0
        rates.refresh(10.0)
        values.append(rates.value(0, 0))

    assert values[0] > 5 * values[1] > 0


def test_what_is_forgotten_has_rested_in_vain() -> None:
    values = []
    for is_reused in (True, False):
        rates = ReuseRates(0)
        cohort = Cohort(0, 0.0, 1)
        rates.add(cohort)
        rates.advance(10.0)
        rates.end_rest(cohort, 1, 10.0, is_reused=is_reused)
        cohort.num_blocks = 0
        rates.refresh(10.0)
        values.append(rates.value(0, 0))

    assert values[0] > 0.0 == values[1]


def test_old_counts_fade_against_new_ones() -> None:
    rates = ReuseRates(0)

    def live(start: float, *, is_reused: bool) -> float:
        cohort = Cohort(0, start, 1)
        rates.add(cohort)
        rates.advance(start + 10.0)
        rates.end_rest(cohort, 1, start + 10.0, is_reused=is_reused)
        cohort.num_blocks = 0
        rates.refresh(start + 10.0)
        return rates.value(0, 0)

    before = live(0.0, is_reused=True)
    for number in range(200):
        after = live(100.0 * (number + 1), is_reused=False)

    assert after < before / 500
