"""What is wrong has no time, anywhere; and neither is anything left out in silence."""

import json
import math
from collections.abc import Sequence
from dataclasses import fields

import pytest
import torch

from scripts.gpu_check import __main__ as program
from scripts.gpu_check.budget import Budget
from scripts.gpu_check.cases import Case, NotHere, Trial, distance, share_different, worst
from scripts.gpu_check.items import SHARES, Item, all_items, carry_out, kernel_item
from scripts.gpu_check.judge import judge
from scripts.gpu_check.report import Header, as_json, as_table
from scripts.gpu_check.resources import Resources
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import SMALL
from tests.scripts.trials import CPU, MICROSECONDS, YARDSTICKS, FixedClock, case_of

METER = (FixedClock(), YARDSTICKS)
HEADER = Header(device="d", torch="2", triton="3", date="today", is_small=False)
SCHEMA = {
    *("name", "shape", "error", "bound", "microseconds", "bytes", "operations", "floor", "share", "target"),
    *("registers", "spills"),
}


def texts_of(rows: Sequence[Row]) -> list[str]:
    return [as_table(rows), as_json(HEADER, YARDSTICKS, rows)]


def has_time(text: str) -> bool:
    return str(MICROSECONDS) in text or f"{MICROSECONDS:.1f}" in text


def test_what_is_right_has_its_time_beside_its_floor() -> None:
    row = judge(case_of(1.0, target=0.4), CPU, METER)

    assert row.status == "right"
    assert row.microseconds == MICROSECONDS
    assert (row.floor, row.yardstick) == (200.0, "copy")
    assert row.share == 200 / MICROSECONDS
    assert all(has_time(text) for text in texts_of([row]))
    assert "46% of copy" in as_table([row])
    assert "40%, met" in as_table([row])


@pytest.mark.parametrize("result", [1.1, math.nan, math.inf])
def test_what_is_wrong_has_no_time(result: float) -> None:
    row = judge(case_of(result), CPU, METER)

    assert row.status == "WRONG"
    assert row.is_bad
    assert (row.microseconds, row.floor, row.share, row.rate) == (None, None, None, None)
    assert not any(has_time(text) for text in texts_of([row]))
    assert "WRONG" in as_table([row])


def test_what_is_wrong_only_when_it_is_timed_has_no_time_either() -> None:
    row = judge(case_of(1.0, 1.5), CPU, METER)

    assert row.status == "WRONG"
    assert row.error == pytest.approx(0.5)
    assert not any(has_time(text) for text in texts_of([row]))


def test_nobody_can_give_a_wrong_row_a_time() -> None:
    wrong = judge(case_of(2.0), CPU, None)

    with pytest.raises(AssertionError, match="only what is right has a time"):
        wrong.timed(1.0, YARDSTICKS)
    with pytest.raises(AssertionError, match="only what is right has a time"):
        Row(name="a", shape="b", status="FAILED", microseconds=1.0)


def test_without_a_meter_nothing_is_timed() -> None:
    row = judge(case_of(1.0), CPU, None)

    assert row.status == "right"
    assert row.microseconds is None
    assert row.floor is None


def test_what_a_device_lacks_is_skipped_with_its_reason() -> None:
    def refuse(_: torch.device) -> Trial:
        raise NotHere("it has no floats of 8 bits")

    case = Case(name="a", shape="b", work=case_of(1.0).work, bound=0.0, make=refuse)

    row = judge(case, CPU, METER)

    assert (row.status, row.note) == ("skipped", "it has no floats of 8 bits")
    assert not row.is_bad


def test_whoever_raises_is_named_and_the_others_go_on() -> None:
    def fail() -> list[Row]:
        raise RuntimeError("out of resources")

    items = [Item("kernels", "bad", "s", fail), kernel_item(case_of(1.0), CPU, METER)]
    told: list[int] = []

    rows = carry_out(items, Budget(60.0, SHARES), lambda rows: told.append(len(rows)))

    assert [row.status for row in rows] == ["FAILED", "right"]
    assert rows[0].note == "RuntimeError: out of resources"
    assert rows[0].is_bad
    assert told == [1, 2]


def test_what_there_is_no_time_for_is_skipped_by_name() -> None:
    now = iter([0.0, 5.0, 50.0, 59.0])
    budget = Budget(100.0, {"first": 0.1, "second": 0.5, "third": 0.4}, lambda: next(now))
    items = [Item(part, part, "s", list) for part in ("first", "first", "second")]

    rows = carry_out(items, budget, lambda _: None)

    assert [(row.name, row.status) for row in rows] == [("first", "skipped")]
    assert rows[0].note == "no time is left for first"
    assert all("no time is left for first" in text for text in texts_of(rows))


def test_what_a_part_leaves_is_there_for_the_next() -> None:
    now = iter([0.0, 59.9, 60.1])
    budget = Budget(100.0, {"first": 0.1, "second": 0.5, "third": 0.4}, lambda: next(now))

    assert budget.has_time("second")
    assert not budget.has_time("second")


def test_every_item_has_a_share_of_the_time_and_they_come_in_that_order() -> None:
    parts = list(dict.fromkeys(item.part for item in all_items(SMALL, CPU, None)))

    assert parts == list(SHARES)


def test_json_has_every_figure_of_every_row() -> None:
    rows = [judge(case_of(1.0), CPU, METER), Row.skipped("b", "s", "no time")]

    document = json.loads(as_json(HEADER, YARDSTICKS, rows))

    assert document["device"] == "d"
    assert document["yardsticks"] == {"copy": 4e12, "matrix": 8e14}
    assert [row["name"] for row in document["rows"]] == ["made_up", "b"]
    assert all(row.keys() >= SCHEMA for row in document["rows"])
    assert document["rows"][0]["microseconds"] == MICROSECONDS
    assert document["rows"][1]["microseconds"] is None


def test_errors_that_are_not_finite_are_said_in_words_and_long_ones_on_one_line() -> None:
    long = Row.failed("b", "s", RuntimeError("line\n" * 100))

    document = json.loads(as_json(HEADER, None, [judge(case_of(math.nan), CPU, None), long]))

    assert document["rows"][0]["error"] == "nan"
    assert document["rows"][1]["note"].count("\n") == 100
    assert len(as_table([long]).splitlines()) == 2
    assert len(as_table([long]).splitlines()[1]) < 300


def test_a_row_names_the_most_that_any_of_its_kernels_takes() -> None:
    kernels = [Resources("one", 64, 3, 100), Resources("two", 128, 0, 200)]

    row = Row.judged("a", "b", None, error=0.0, bound=0.0, kernels=kernels)

    assert (row.registers, row.spills) == (128, 3)
    assert json.loads(as_json(HEADER, None, [row]))["rows"][0]["kernels"][0]["kernel"] == "one"


def test_a_table_has_a_cell_for_every_column() -> None:
    first, *rest = as_table([judge(case_of(1.0), CPU, METER), Row.skipped("b", "s", "why")]).splitlines()

    assert first.split()[:2] == ["name", "shape"]
    assert len(rest) == 2
    assert rest[1].endswith("why")
    assert {field.name for field in fields(Row)} >= SCHEMA


def test_distances_are_relative_and_of_the_whole() -> None:
    assert distance(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)
    assert math.isnan(distance(torch.tensor([math.nan]), torch.tensor([1.0])))
    assert distance(torch.ones(2), torch.zeros(2)) > 1e20
    assert share_different(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25
    assert worst(0.1, 0.3, 0.2) == 0.3
    assert math.isnan(worst(0.1, math.nan, 0.2))


def test_the_exit_status_is_1_when_anything_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [judge(case_of(2.0), CPU, METER), judge(case_of(1.0), CPU, METER)]

    assert program.finish(wrong) == 1
    assert "WRONG" in capsys.readouterr().out
    assert program.finish(wrong[1:]) == 0
    assert program.finish([Row.skipped("a", "b", "no time")]) == 0
    assert program.finish([Row.failed("a", "b", RuntimeError("no"))]) == 1
