"""The bench of the bare engine: its shapes stand as they say, and what it counts is exact."""

import math
from collections.abc import Sequence

import pytest

from benchmarks.bare import FilledRunner, Served, Shape, random_ids, start, time_steps
from benchmarks.costs import Costs, bound_of
from benchmarks.engine import Arrival, Decoding, Prompts, arrive, decode, prefill, run_batch, shapes
from benchmarks.modelless import HashRunner
from benchmarks.peaks import Peaks, measure_peaks
from engine.step import Step, StepResult


class Recorder(HashRunner):
    """Remembers the steps that it was asked to compute."""

    def __init__(self, num_blocks: int = 256) -> None:
        super().__init__(num_blocks, 16, 4096)
        self.steps: list[list[tuple[int, int]]] = []

    def run(self, step: Step) -> StepResult:
        if step.spans:
            self.steps.append([(span.start, span.end) for span in step.spans])
        return super().run(step)


@pytest.fixture
def costs(served: Served) -> Costs:
    return served.costs


def test_prompts_that_only_have_to_be_there_are_not_computed() -> None:
    recorder = Recorder()

    core = start(FilledRunner(recorder), Shape(3, 100), num_steps=2)
    core.step()

    assert recorder.steps == [[(100, 101)] * 3]
    assert all(each.num_tokens == 102 for each in core.scheduler.running)


def test_what_users_share_lies_in_the_same_blocks() -> None:
    core = start(FilledRunner(Recorder()), Shape(4, 100, num_shared=64), num_steps=1)

    tables = [each.block_table for each in core.scheduler.running]
    assert len({tuple(table[:4]) for table in tables}) == 1
    assert len({table[4] for table in tables}) == 4


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="raise --kv-bytes"):
        start(FilledRunner(Recorder(num_blocks=16)), Shape(8, 100), num_steps=1)


def test_the_first_steps_are_not_counted() -> None:
    core = start(FilledRunner(Recorder()), Shape(1, 20), num_steps=8)
    ticks = iter([0.0, 9.0] * 3 + [0.0, 1.0, 1.0, 3.0])

    assert time_steps(core, 2, lambda: next(ticks)) == [1.0, 2.0]


def test_shapes_share_only_where_several_users_have_more() -> None:
    found = shapes([1, 8], [100, 900], 600)

    assert found == [Shape(1, 100), Shape(1, 900), Shape(8, 100), Shape(8, 900), Shape(8, 900, 600)]
    assert Shape(8, 900, 600) not in shapes([1, 8], [100, 900], 0)


@pytest.mark.parametrize("num_users", [1, 4])
def test_a_new_system_prompt_is_computed_once_for_all_who_come_at_once(num_users: int) -> None:
    arrival = arrive(Recorder(), num_users, 1, num_system=64, num_own=20)

    assert arrival.num_computed == arrival.num_least == 64 + num_users * 20


def test_ratios_of_an_arrival() -> None:
    arrival = Arrival(9, 80, 20, 260, seconds=3.0, seconds_alone=1.5)

    assert (arrival.num_least, arrival.ratio, arrival.least_ratio) == (260, 2.0, 2.6)


def test_rates_are_those_of_the_medians() -> None:
    assert Decoding(Shape(8, 100), 20.0, 10.0).tokens_per_second == 400.0
    prompts = Prompts(512, 256.0, 1e9)
    assert (prompts.tokens_per_second, prompts.operations_per_second) == (2000.0, 1e9 / 0.256)


def test_a_batch_is_answered_in_full() -> None:
    recorder = Recorder()
    prompts = [random_ids(5, 1000, seed) for seed in range(3)]

    assert run_batch(recorder, prompts, 7) > 0
    assert sum(map(len, recorder.steps)) == 3 * 7


def test_a_real_model_decodes_and_reads_prompts(served: Served, costs: Costs) -> None:
    decoding = decode(FilledRunner(served.runner), Shape(2, 40, 16), 3)
    prompts = prefill(served.runner, costs, 1, num_tokens=64)

    assert 0 < decoding.least_ms <= decoding.median_ms
    assert prompts.operations_per_second > 0


def brute_seen(spans: Sequence[tuple[int, int]]) -> int:
    return sum(place + 1 for start, end in spans for place in range(start, end))


def test_costs_are_those_of_the_matrices_and_of_what_is_seen(costs: Costs) -> None:
    config = costs.config
    spans = [(0, 10), (40, 41)]

    work = costs.count(spans, num_blocks=4, num_draws=2)

    rows = (4 + 2 * 2) * 32  # queries, keys and values
    layer = 64 * rows + 4 * 32 * 64 + 3 * 64 * 128
    assert work["products"].num_bytes == 2 * layer
    assert work["products"].operations == 2 * 2 * layer * 11
    assert work["head"].num_bytes == config.vocab_size * 64
    assert work["head"].operations == 2 * 2 * config.vocab_size * 64
    # Blocks x slots x layers x key heads x keys and values, each of 32 bytes and a step.
    assert work["attention"].num_bytes == 4 * 16 * 2 * 2 * 2 * (32 + 4)
    assert work["attention"].operations == 2 * 2 * 2 * 4 * 32 * brute_seen(spans)


def test_what_bounds_a_step_is_what_takes_longest(costs: Costs) -> None:
    work = costs.count([(99, 100)], num_blocks=7, num_draws=1)

    assert "reading the weights" in bound_of(work, Peaks(1e30, 1e30, 1.0))
    assert "computing with the weights" in bound_of(work, Peaks(1.0, 1.0, 1e30))
    crowded = costs.count([(99, 100)], num_blocks=10**6, num_draws=1)
    assert "reading keys and values" in bound_of(crowded, Peaks(1e30, 1e30, 1.0))


def test_peaks_are_rates() -> None:
    peaks = measure_peaks(64, 1 << 16)

    assert all(0 < each < math.inf for each in (peaks.bfloat16, peaks.int8, peaks.read))
