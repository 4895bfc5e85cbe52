"""What steps take, and how many tokens fit into a time: learned, and never more than was seen to work."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.pace import StepPace

MEASURED = {1: 0.010, 8: 0.012, 32: 0.020, 128: 0.060}


def test_times_between_measurements_lie_between_them() -> None:
    pace = StepPace(0.1, MEASURED)

    assert pace.seconds(1) == pytest.approx(0.010)
    assert pace.seconds(80) == pytest.approx(0.040)
    assert pace.seconds(228) == pytest.approx(0.060 + 100 * 0.040 / 96)


def test_nothing_is_known_without_measurements() -> None:
    pace = StepPace(0.1, {})

    assert (pace.budget(), pace.seconds(50)) == (None, 0.0)
    pace.note(64, 0.05)
    assert pace.seconds(64) == pytest.approx(0.05)
    assert pace.budget() is not None


@pytest.mark.parametrize(
    ("target", "budget"),
    [
        (0.040, 80),  # between two measurements
        (0.060, 128),
        (0.070, 152),  # beyond them, by their slope
        (9.0, 192),  # never more than half as much again as was ever tried
        (0.001, 1),  # whatever the target, one token
    ],
)
def test_the_budget_is_what_fits_into_the_target(target: float, budget: int) -> None:
    assert StepPace(target, MEASURED).budget() == pytest.approx(budget, abs=1)


def test_steps_that_get_slower_lower_the_budget() -> None:
    pace = StepPace(0.060, MEASURED)
    for _ in range(40):
        pace.note(128, 0.120)

    budget = pace.budget()
    assert budget is not None
    assert budget < 75


def test_one_disturbed_step_changes_little() -> None:
    pace = StepPace(0.060, MEASURED)
    pace.note(128, 60.0)

    assert pace.seconds(128) == pytest.approx(0.060 * (1 + 0.2 * 2))


@example([(112, 3.756429351096204)], 1.0)
@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-4, 10.0)), max_size=30), st.floats(1e-3, 2.0))
def test_expected_times_never_fall_and_the_budget_keeps_to_the_target(
    steps: list[tuple[int, float]], target: float
) -> None:
    pace = StepPace(target, MEASURED)
    for num_tokens, seconds in steps:
        pace.note(num_tokens, seconds)

    times = [pace.seconds(num_tokens) for num_tokens in range(1, 6000, 37)]
    assert times == sorted(times)
    budget = pace.budget()
    assert budget is not None
    assert budget == 1 or pace.seconds(budget) <= target * 1.001
