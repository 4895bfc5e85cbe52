"""The core's figures and its refusals, over a scripted model."""

from array import array

import pytest

from engine.core import EngineCore
from engine.messages import Abort, Accepted, Refused, Submit, TokenEvents
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from tests.scripted import ScriptedRunner, emit, make_info


def core(**info: int) -> tuple[EngineCore, ScriptedRunner]:
    runner = ScriptedRunner(emit([], then=5), info=make_info(**info))
    return EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8), clock=lambda: 0.0), runner


def submit(request_id: str, prompt: list[int], choices: int = 1, **sampling) -> Submit:
    return Submit(
        request_id=request_id,
        prompt=array("i", prompt).tobytes(),
        sampling=SamplingParams(**{"max_tokens": 4, **sampling}),
        namespace=b"a",
        num_choices=choices,
    )


def run(engine: EngineCore, message: Submit) -> list:
    """Run one request to its end; its events."""
    assert isinstance(engine.submit(message), Accepted)
    events = []
    while engine.has_work:
        for sent in engine.step():
            assert isinstance(sent, TokenEvents)
            events += sent.events
    return events


def test_cached_tokens_are_those_that_were_not_computed() -> None:
    """The figure that clients see, held against what the runner was asked to compute."""
    engine, runner = core()
    prompt = list(range(100))
    run(engine, submit("first", prompt))
    computed_before = runner.num_computed

    events = run(engine, submit("second", [*prompt, 5, 5, 5, 5, 101, 102]))

    computed = runner.num_computed - computed_before
    assert events[0].num_cached_tokens == 103
    assert computed == (106 - 103) + 3
    assert engine.stats().num_cached_tokens == 103
    assert engine.stats().num_prompt_tokens == 206
    assert engine.stats().num_computed_prompt_tokens == 103


def test_waste_is_the_share_of_allocated_slots_without_a_token() -> None:
    engine, _ = core()
    engine.submit(submit("r", list(range(24)), max_tokens=40))
    engine.step()

    assert engine.stats().kv_waste == pytest.approx(1 - 24 / 32)
    assert engine.stats().kv_waste_max == pytest.approx(1 - 24 / 32)


def test_shared_blocks_count_once_in_waste() -> None:
    engine, _ = core()
    run(engine, submit("warm", list(range(32)), max_tokens=1))
    for name in "ab":
        engine.submit(submit(name, [*range(32), ord(name)], max_tokens=40))
    engine.step()

    assert engine.stats().num_held_blocks == 4
    assert engine.stats().kv_waste == pytest.approx(1 - (32 + 1 + 1) / 64)


def test_nothing_is_left_when_idle() -> None:
    engine, _ = core()
    run(engine, submit("r", list(range(50)), choices=3, max_tokens=20))
    engine.submit(submit("gone", list(range(70)), max_tokens=100))
    engine.step()
    engine.abort(Abort(request_id="gone"))

    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
    assert (stats.num_finished, stats.num_aborted) == (3, 1)
    engine.scheduler.check_invariants()


def test_a_prompt_that_is_not_whole_ids_is_refused() -> None:
    engine, _ = core()
    message = Submit(
        request_id="r", prompt=b"\x01\x02\x03", sampling=SamplingParams(max_tokens=1), namespace=b"a"
    )

    assert isinstance(engine.submit(message), Refused)
    assert not engine.has_work


def test_refusals_name_the_numbers() -> None:
    engine, _ = core(context_length=100)

    refused = engine.submit(submit("r", list(range(90)), max_tokens=11))

    assert refused is not None
    assert all(number in refused.message for number in ("90", "11", "100"))
