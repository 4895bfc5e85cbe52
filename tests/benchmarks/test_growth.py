"""The bench of growth: a value a size, shared blocks counted once, and plots that are drawn."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bare import Served
from benchmarks.growth import Extent, Figure, measure, memory
from benchmarks.modelless import HashRunner
from benchmarks.peaks import Peaks

TINY = Extent(
    users=(1, 2), contexts=(32, 64), histories=(32, 64), conversations=(1, 3), num_steps=2, num_rounds=1
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def figures(served: Served) -> dict[str, Figure]:
    found = measure(served, replace(TINY, conversations=()), Peaks(1e9, 1e9, 1e9))
    return {figure.name: figure for figure in found}


def test_every_line_has_a_value_for_every_size(figures: dict[str, Figure]) -> None:
    assert set(figures) == {"users", "context", "history", "memory"}
    for figure in figures.values():
        assert all(len(values) == len(figure.sizes) for values in figure.lines.values()), figure.name
        assert all(value is not None and value > 0 for values in figure.lines.values() for value in values)


def test_floors_grow_with_users_and_with_context(figures: dict[str, Figure]) -> None:
    for name, line in (("users", "floor"), ("context", "1 at once, floor"), ("context", "4 at once, floor")):
        one, more = figures[name].lines[line]
        assert one is not None
        assert more is not None
        assert more > one


def test_a_figure_says_what_bounds_it(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        assert "bound by" in figure.table().splitlines()[-1]


def test_memory_counts_what_conversations_share_once() -> None:
    runner = HashRunner(1024, 16, 4096)

    blocks = memory(runner, TINY, block_bytes=MIB).lines

    # 632 tokens: 32 blocks in common, and 8 of each conversation's own.
    assert blocks["blocks"] == [40.0, 56.0]
    assert blocks["blocks, unshared"] == [40.0, 120.0]


def test_a_figure_is_drawn_under_its_name(tmp_path: Path) -> None:
    figure = Figure("some", "users", "ms", (1, 2), {"measured": [1.0, None]}, "bound by nothing")

    figure.draw(tmp_path)

    assert (tmp_path / "growth-some.svg").read_text().startswith("<svg")
    assert "measured" in figure.table()
