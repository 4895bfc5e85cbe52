"""The profile: kinds add up to the step, and floors are of what the step had to do."""

import json

import pytest

from benchmarks.bare import FilledRunner, Served, Shape
from benchmarks.costs import Costs, Work
from benchmarks.peaks import Peaks
from benchmarks.profile import (
    IN_LAYERS,
    KINDS,
    MarkedRunner,
    Marks,
    Profile,
    as_json,
    profile_decoding,
    profile_prefill,
    table,
)
from engine.core import EngineCore
from engine.scheduler import Limits
from kernels.cpu.fused_stack import FusedStack
from tests.engine.answers import ask

PEAKS = Peaks(1e9, 1e9, 1e9)


@pytest.fixture
def costs(served: Served) -> Costs:
    return served.costs


def profile(served: Served, costs: Costs, shape: Shape, count: int) -> Profile:
    marks = Marks()
    return profile_decoding(FilledRunner(MarkedRunner(served.runner, marks)), marks, costs, shape, count)


def marked_by_hand(cycles: dict[str, int]) -> Marks:
    """A step of 20 seconds."""
    marks = Marks()
    marks.spans = {
        "step": (0.0, 20.0),
        "run": (1.0, 19.0),
        "forward": (2.0, 12.0),
        "layers": (3.0, 11.0),
        "head": (13.0, 16.0),
    }
    marks.cycles = cycles
    return marks


def test_kinds_are_what_lies_between_the_marks_and_add_up_to_the_step() -> None:
    times = marked_by_hand({"products": 300, "attention": 100, "rows": 0, "waiting": 0}).times()

    assert times == {
        "products": 6.0,
        "attention": 2.0,
        "rows": 0.0,
        "waiting": 0.0,
        "head": 3.0,
        "sampling": 3.0,
        "packing": 1.0,
        "scheduler and cache": 2.0,
        "rest": 3.0,
    }
    assert sum(times.values()) == 20.0


def test_layers_that_count_no_cycles_are_one_kind() -> None:
    times = marked_by_hand({}).times()

    assert times["layers"] == 8.0
    assert sum(times.values()) == 20.0


def test_a_step_that_draws_nothing_has_no_head() -> None:
    marks = marked_by_hand({})
    del marks.spans["head"]

    times = marks.times()

    assert (times["head"], times["sampling"]) == (0.0, 7.0)
    assert sum(times.values()) == 20.0


def test_a_marked_runner_says_what_the_plain_one_says(served: Served) -> None:
    def answer(runner: MarkedRunner | None) -> list[int]:
        core = EngineCore(runner or served.runner, Limits(max_batch_tokens=64, max_sequences=1))
        return ask(core, [5, 9, 3] * 7).token_ids

    assert answer(MarkedRunner(served.runner, Marks())) == answer(None)


def test_steps_of_a_real_model_are_split_by_kind(served: Served, costs: Costs) -> None:
    found = profile(served, costs, Shape(3, 40, 16), 4)

    assert len(found.steps) == 4
    assert all(min(step.values()) >= 0 for step in found.steps)
    assert set(IN_LAYERS) <= set(found.medians())
    assert [kind for kind in KINDS if kind in found.medians()] == list(found.medians())


def test_cycles_are_those_of_the_last_step_alone(served: Served, costs: Costs) -> None:
    marks = Marks()
    runner = FilledRunner(MarkedRunner(served.runner, marks))

    profile_decoding(runner, marks, costs, Shape(1, 40), 4)

    stack = served.runner.decoder.stack
    assert isinstance(stack, FusedStack)
    assert 0 < sum(marks.cycles.values()) < sum(stack.cycles.values())


def test_work_is_that_of_the_shape_with_shared_blocks_once(served: Served, costs: Costs) -> None:
    found = profile(served, costs, Shape(3, 40, 32), 4)

    # Two blocks in common, and one of each user's own.
    own = costs.count([(46, 47)] * 3, num_blocks=2 + 3, num_draws=3)
    assert found.work == own


def test_a_chunk_of_a_prompt_follows_what_is_cached(served: Served, costs: Costs) -> None:
    marks = Marks()
    runner = FilledRunner(MarkedRunner(served.runner, marks))

    found = profile_prefill(runner, marks, costs, 48, 64)

    assert found.name == "prefill 48 after 64"
    assert found.work == costs.count([(64, 112)], num_blocks=7, num_draws=1)


def test_medians_and_floors_are_in_the_table_and_in_the_json() -> None:
    steps = [{"head": 0.004, "rest": 0.001}, {"head": 0.002, "rest": 0.001}, {"head": 0.003, "rest": 0.001}]
    found = Profile("some shape", steps, {"head": Work(1e6, 1.5e6)})

    told = json.loads(json.dumps(as_json(found, PEAKS)))

    assert told["ms"] == {"step": 4.0, "head": 3.0, "rest": 1.0}
    assert told["floor_ms"] == {"step": 1.5, "head": 1.5}
    lines = {line.split()[0]: line.split()[1:] for line in table(found, PEAKS).splitlines()[1:]}
    assert lines["head"] == ["3.000", "75.0%", "1.500", "50%"]
    assert lines["rest"] == ["1.000", "25.0%"]
