"""What the core says to requests that it does not take now; and that it is free while a step runs."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.core import CoreOptions, EngineCore
from engine.messages import Accepted, BeamParams, Refused, Submit, TokenEvents
from engine.pace import StepPace
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Step, StepResult
from engine.stepping import StepThread, ThreadStepper
from prefix_cache.quota import account_of
from prefix_cache.tokens import pack
from tests.scripted import ScriptedRunner, emit

ANN, BEN = b"a" * 32, b"b" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def submit(name: str, namespace: bytes = ANN, *, num_tokens: int = 20, max_tokens: int = 3) -> Submit:
    return Submit(
        request_id=name,
        prompt=pack([place % 100 for place in range(num_tokens)]),
        sampling=SamplingParams(max_tokens=max_tokens),
        namespace=namespace,
    )


def make_core(clock: Clock | None = None, **limits: float) -> EngineCore:
    values = {"max_batch_tokens": 64, "max_sequences": 1, **limits}
    return EngineCore(
        ScriptedRunner(emit([], then=5)),
        Limits(**values),
        clock or Clock(),
        pace=StepPace(0.1, {1: 0.01, 64: 0.1}),
    )


def test_a_full_queue_says_when_to_come_back() -> None:
    """The tenant's own: another one is still taken. The time is about what its waiting prompts take."""
    core = make_core(max_waiting=2)
    assert isinstance(core.submit(submit("1")), Accepted)
    assert isinstance(core.submit(submit("2", num_tokens=1000)), Accepted)

    refused = core.submit(submit("3"))

    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.kind) == ("3", "queue_full")
    assert refused.retry_after == pytest.approx(1020 / 64 * 0.1, rel=0.01)
    assert isinstance(core.submit(submit("4", BEN)), Accepted)
    assert core.stats().num_queue_full == 1


def test_a_request_that_waits_too_long_is_told_so() -> None:
    clock = Clock()
    core = make_core(clock, max_wait_seconds=10.0)
    core.submit(submit("runs", max_tokens=100))
    core.step()
    core.submit(submit("waits"))
    clock.now = 10.0
    assert core.tend() == []

    clock.now = 10.5
    (refused,) = core.tend()

    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.kind) == ("waits", "waited_too_long")
    assert refused.retry_after is not None
    assert core.stats().num_waiting == 0
    assert core.stats().num_waited_too_long == 1
    assert core.stats().num_running == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"seed": -1}, "64 bits"),
        ({"seed": 1 << 64}, "64 bits"),
        ({"logprobs": -1}, "0 to 20"),
        ({"prompt_logprobs": 21}, "0 to 20"),
        ({"beam": BeamParams(width=0)}, "hypotheses"),
        ({"beam": BeamParams(width=17)}, "hypotheses"),
        ({"beam": BeamParams(width=2, length_penalty=400.0)}, "length penalty"),
    ],
)
def test_values_that_would_fail_a_step_are_refused(values: dict[str, Any], reason: str) -> None:
    sampling = SamplingParams(**{"max_tokens": 3, **values})
    message = Submit(request_id="r", prompt=pack([1, 2]), sampling=sampling, namespace=ANN)

    refused = make_core().submit(message)

    assert isinstance(refused, Refused)
    assert refused.kind == "refused"
    assert reason in refused.message


def test_an_id_that_runs_is_not_taken_again_and_may_come_back_later() -> None:
    core = make_core()
    core.submit(submit("1"))
    assert isinstance(core.submit(submit("1", BEN)), Refused)
    while core.has_work:
        core.step()
    assert isinstance(core.submit(submit("1")), Accepted)


def test_weights_come_from_the_options() -> None:
    """Of two tenants with equal requests, the one that weighs three times as much is served so much more."""
    runner = ScriptedRunner(emit([], then=5))
    core = EngineCore(
        runner,
        Limits(max_batch_tokens=64, max_sequences=1),
        options=CoreOptions(weights={account_of(BEN): 3.0}),
    )
    for number in range(20):
        for name in (ANN, BEN):
            message = submit(f"{name[:1].decode()} {number}", name)
            core.submit(
                Submit(
                    request_id=message.request_id,
                    prompt=pack([number + 30, *range(20)]),
                    sampling=message.sampling,
                    namespace=name,
                )
            )
    ended: list[str] = []
    while len(ended) < 16:
        for news in core.step():
            assert isinstance(news, TokenEvents)
            ended += [event.request_id[0] for event in news.events if event.finish_reason]

    assert 11 <= ended.count("b") <= 13


def test_while_a_step_runs_messages_are_taken_and_the_next_step_is_prepared() -> None:
    may_end, has_begun = threading.Event(), threading.Event()
    thread = StepThread()
    runner = ScriptedRunner(emit([], then=5), before_step=_hold(has_begun, may_end))
    core = EngineCore(
        runner,
        Limits(max_batch_tokens=64, max_sequences=4),
        stepper=ThreadStepper(thread, runner.run),
    )
    core.submit(submit("first"))
    assert core.begin()
    assert has_begun.wait(10)

    assert isinstance(core.submit(submit("second", BEN)), Accepted)
    core.look_ahead()

    assert core.is_running
    assert not core.is_step_done
    assert core.stats().num_running == 2
    may_end.set()
    (news,) = core.finish()
    assert isinstance(news, TokenEvents)
    assert [event.request_id for event in news.events] == ["first"]
    thread.close()


def test_a_step_that_fails_beside_its_owner_ends_its_requests_alone() -> None:
    thread = StepThread()
    runner = ScriptedRunner(emit([], then=5))

    def run(step: Step) -> StepResult:
        if any(span.sequence.request_id == "bad" for span in step.spans):
            raise RuntimeError("no")
        return runner.run(step)

    core = EngineCore(
        runner, Limits(max_batch_tokens=64, max_sequences=1), stepper=ThreadStepper(thread, run)
    )
    core.submit(submit("bad"))
    core.submit(submit("good", BEN))

    (refused,) = core.step()
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.kind) == ("bad", "failed")
    said = [message for _ in range(4) for message in core.step()]
    assert len(said) == 3
    thread.close()


def _hold(has_begun: threading.Event, may_end: threading.Event) -> Callable[[Step], None]:
    def before_step(step: Step) -> None:
        has_begun.set()
        assert may_end.wait(10)

    return before_step
