"""What the service keeps, and when it rests."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from engine.connection import EngineConnection
from engine.core import EngineCore
from engine.messages import Submit
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.service import EngineService
from engine.step import Step
from engine.stepping import StepThread, ThreadStepper
from prefix_cache.tokens import pack
from tests.scripted import ScriptedRunner, emit

pytestmark = pytest.mark.anyio


@pytest.fixture
def rests() -> threading.Semaphore:
    """Counts how often the service has rested."""
    return threading.Semaphore(0)


@pytest.fixture
def service(tmp_path: Path, rests: threading.Semaphore) -> Iterator[EngineService]:
    core = EngineCore(ScriptedRunner(emit([], then=5)), Limits(max_batch_tokens=64, max_sequences=8))
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/engine.sock")
    service = EngineService(core, socket, on_rest=rests.release)
    should_stop = threading.Event()
    thread = threading.Thread(target=service.run, args=(should_stop,))
    thread.start()
    yield service
    should_stop.set()
    thread.join()
    socket.close(linger=0)


async def ask(folder: Path, request_id: str) -> None:
    connection = EngineConnection(f"ipc://{folder}/engine.sock")
    await asyncio.wait_for(connection.ready(), 10)
    sampling = SamplingParams(max_tokens=3)
    message = Submit(request_id=request_id, prompt=pack([1, 2]), sampling=sampling, namespace=b"a")
    assert len([event async for event in await connection.start([message])]) == 3
    await connection.stats()  # answered after everything that was sent before
    await connection.close()


async def test_nothing_is_kept_of_requests_that_have_ended(service: EngineService, tmp_path: Path) -> None:
    for number in range(3):
        await ask(tmp_path, str(number))

    assert service._owners == {}


async def test_it_rests_once_after_each_spell_of_work(
    service: EngineService, rests: threading.Semaphore, tmp_path: Path
) -> None:
    assert await asyncio.to_thread(rests.acquire, timeout=20)
    assert not await asyncio.to_thread(rests.acquire, timeout=1.5)

    await ask(tmp_path, "r")

    assert await asyncio.to_thread(rests.acquire, timeout=20)


async def test_what_is_forgotten_while_a_step_computes_it_is_forgotten_after(tmp_path: Path) -> None:
    """The step would make findable what was to be forgotten: so it is waited for."""
    has_begun, may_end = threading.Event(), threading.Event()
    steps = StepThread()
    runner = ScriptedRunner(emit([], then=5), before_step=_hold_second(has_begun, may_end))
    core = EngineCore(
        runner, Limits(max_batch_tokens=64, max_sequences=8), stepper=ThreadStepper(steps, runner.run)
    )
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/engine.sock")
    should_stop = threading.Event()
    thread = threading.Thread(target=EngineService(core, socket, wake=steps).run, args=(should_stop,))
    thread.start()
    connection = EngineConnection(f"ipc://{tmp_path}/engine.sock")
    await asyncio.wait_for(connection.ready(), 10)
    prompt = list(range(20))
    message = Submit(
        request_id="r", prompt=pack(prompt), sampling=SamplingParams(max_tokens=9), namespace=b"a"
    )
    events = await connection.start([message])
    await anext(aiter(events))
    assert await asyncio.to_thread(has_begun.wait, 10)  # the step that computes the first drawn token

    events.close()
    forgetting = asyncio.create_task(connection.forget(b"a", pack([*prompt, 5]), 20))
    await connection.stats()  # answered while the step runs, after everything that was sent before
    assert not forgetting.done()
    may_end.set()
    await asyncio.wait_for(forgetting, 10)

    await connection.stats()
    assert core.cache.match_length(b"a", pack([*prompt, 5])) == 20
    await connection.close()
    should_stop.set()
    thread.join()
    socket.close(linger=0)
    steps.close()


def _hold_second(has_begun: threading.Event, may_end: threading.Event) -> Callable[[Step], None]:
    seen: list[Step] = []

    def before_step(step: Step) -> None:
        seen.append(step)
        if len(seen) == 2:
            has_begun.set()
            assert may_end.wait(10)

    return before_step
