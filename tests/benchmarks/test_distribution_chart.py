"""Charts of distributions: what a line says, and what an axis holds."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.distribution_chart import Panel, distribution_chart, ends, steps, ticks


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=900))
def test_a_distributions_line_says_which_share_lies_at_or_below(values: list[float]) -> None:
    line = steps(values)

    assert line[0][0] == min(values)
    assert line[-1] == (max(values), 1.0)
    assert len(line) <= 402
    for value, share in line[:: max(1, len(line) // 10)]:
        assert share == sum(each <= value for each in values) / len(values)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
def test_the_axis_holds_all_values(values: list[float]) -> None:
    low, high = ends(Panel("", "ms", {"a": values}))

    assert 10**low <= min(values) * (1 + 1e-9)
    assert max(values) <= 10**high * (1 + 1e-9)
    assert low < high
    assert all(10**low * 0.999 <= mark <= 10**high * 1.001 for mark in ticks(low, high))


def test_ticks_are_round() -> None:
    assert ticks(0, 2) == [1, 2, 5, 10, 20, 50, 100]


def test_a_chart_has_a_panel_for_each_that_has_values() -> None:
    panels = [
        Panel("One", "ms", {"a<b": [1.0, 2.0], "c": [3.0]}),
        Panel("Two", "ms", {"a<b": [], "c": []}),
        Panel("Three", "ms", {"c": [0.0, 5.0]}),
    ]

    chart = distribution_chart(panels)

    assert "One" in chart
    assert "Two" not in chart
    assert "a&lt;b" in chart
    assert chart.count("<polyline") == 3
    assert 'viewBox="0 0 720 520"' in chart
    assert distribution_chart([]).startswith("<svg")
