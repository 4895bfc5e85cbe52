"""The client's end of the engine's socket, against a real service with a scripted model."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from engine.connection import EngineConnection
from engine.core import EngineCore
from engine.errors import EngineDied, EngineError, EngineStopping, QueueFull, RequestRefused, WaitedTooLong
from engine.event_stream import EventStream
from engine.messages import Submit, TokenEvent
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Step
from prefix_cache.tokens import pack
from tests.scripted import ScriptedRunner, emit, serve_engine

pytestmark = pytest.mark.anyio


def submit(
    request_id: str = "r", prompt: tuple[int, ...] = (1, 2, 3), choices: int = 1, **sampling
) -> Submit:
    return Submit(
        request_id=request_id,
        prompt=pack(prompt),
        sampling=SamplingParams(**{"max_tokens": 5, **sampling}),
        namespace=b"a",
        num_choices=choices,
    )


@contextmanager
def served(runner: ScriptedRunner, folder: Path) -> Iterator[tuple[str, EngineCore]]:
    with serve_engine(runner, folder) as served_engine:
        yield served_engine


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[EngineConnection]:
    connection = EngineConnection(address)
    try:
        await asyncio.wait_for(connection.ready(), 10)
        yield connection
    finally:
        await connection.close()


async def collect(connection: EngineConnection, message: Submit) -> list[TokenEvent]:
    return [event async for event in await connection.start([message])]


async def until_idle(connection: EngineConnection) -> None:
    """Wait until nothing runs, waits or is held."""
    async with asyncio.timeout(10):
        while (stats := await connection.stats()).num_running or stats.num_waiting or stats.num_held_blocks:
            await asyncio.sleep(0.01)


async def test_events_carry_every_token_and_one_end(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([7, 8, 9], then=4)), tmp_path) as (address, _):
        async with connected(address) as connection:
            events = await collect(connection, submit(stop_token_ids=(9,)))

    assert [event.token_ids for event in events] == [[7], [8], []]
    assert [event.finish_reason for event in events] == [None, None, "stop"]
    assert events[-1].stop_token_id == 9


async def test_requests_run_beside_each_other(tmp_path: Path) -> None:
    script = emit([], then=5)
    with served(ScriptedRunner(script), tmp_path) as (address, _):
        async with connected(address) as connection:
            answers = await asyncio.gather(
                *(collect(connection, submit(str(n), max_tokens=n, choices=2)) for n in range(1, 6))
            )

    for n, events in enumerate(answers, start=1):
        assert sum(len(event.token_ids) for event in events) == 2 * n
        assert sorted(event.choice for event in events if event.finish_reason) == [0, 1]


async def test_a_client_that_leaves_frees_everything(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, core):
        async with connected(address) as connection:
            with contextlib.closing(await connection.start([submit(max_tokens=900, choices=3)])) as events:
                await anext(events)
            await until_idle(connection)
            stats = await connection.stats()
        core.scheduler.check_invariants()

    assert stats.num_aborted == 3
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


async def test_aborting_one_choice_lets_the_others_finish(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, _):
        async with connected(address) as connection:
            ends = []
            async for event in await connection.start([submit(max_tokens=40, choices=2)]):
                if event.choice == 0 and event.finish_reason is None:
                    connection.abort("r", 0)
                if event.finish_reason is not None:
                    ends.append(event.choice)

    assert ends == [1]


@pytest.mark.parametrize(
    "message",
    [
        submit(prompt=()),
        submit(prompt=(1, 512)),
        submit(prompt=(-1,)),
        submit(max_tokens=4096),
        submit(logit_bias={512: 1.0}),
        submit(stop_token_ids=(-1,)),
    ],
    ids=["empty", "id too large", "id negative", "too long", "bias id", "stop id"],
)
async def test_what_can_never_run_is_refused(tmp_path: Path, message: Submit) -> None:
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, _):
        async with connected(address) as connection:
            with pytest.raises(RequestRefused):
                await collect(connection, message)
            assert len(await collect(connection, submit("next"))) == 5


async def test_a_failed_step_ends_its_requests_and_no_others(tmp_path: Path) -> None:
    def fail_on_marked(step: Step) -> None:
        if any(span.sequence.request_id == "bad" and span.sequence.num_drawn == 2 for span in step.spans):
            raise RuntimeError("device lost")

    runner = ScriptedRunner(emit([], then=5), before_step=fail_on_marked)
    with served(runner, tmp_path) as (address, core):
        async with connected(address) as connection:
            with pytest.raises(EngineError, match="failed"):
                await collect(connection, submit("bad"))
            assert len(await collect(connection, submit("good"))) == 5
            await until_idle(connection)
        core.scheduler.check_invariants()


async def test_closing_the_connection_ends_waiting_requests(tmp_path: Path) -> None:
    release = threading.Event()
    runner = ScriptedRunner(emit([], then=5), before_step=lambda step: release.wait(10) and None)
    with served(runner, tmp_path) as (address, _):
        async with connected(address) as connection:
            waiting = asyncio.create_task(collect(connection, submit()))
            await asyncio.sleep(0.05)
            await connection.close(EngineStopping("gone"))
            with pytest.raises(EngineStopping, match="gone"):
                await waiting
        release.set()


async def test_requests_that_belong_together_share_one_stream_of_events(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([7, 8], then=4)), tmp_path) as (address, _):
        async with connected(address) as connection:
            started = await connection.start(
                [submit("a", max_tokens=2), submit("b", choices=2, max_tokens=3)]
            )
            events = [event async for event in started]

    told = [(event.request_id, event.choice, token) for event in events for token in event.token_ids]
    assert sorted(told) == [
        ("a", 0, 7), ("a", 0, 8),
        *[("b", choice, token) for choice in (0, 1) for token in (4, 7, 8)],
    ]  # fmt: skip


async def test_if_one_of_several_is_refused_nothing_of_them_runs_on(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, core):
        async with connected(address) as connection:
            with pytest.raises(RequestRefused):
                await connection.start([submit("a", max_tokens=900), submit("b", prompt=())])
            await until_idle(connection)
        core.scheduler.check_invariants()


async def test_before_the_engine_is_ready_nothing_is_started(tmp_path: Path) -> None:
    connection = EngineConnection(f"ipc://{tmp_path}/nobody.sock")

    with pytest.raises(EngineDied):
        await connection.start([submit()])

    await connection.close()


async def test_a_full_queue_is_told_before_anything_else(tmp_path: Path) -> None:
    limits = Limits(max_batch_tokens=64, max_sequences=1, max_waiting=1)
    with serve_engine(ScriptedRunner(emit([], then=5)), tmp_path, limits) as (address, _):
        async with connected(address) as connection:
            started = await asyncio.gather(
                *[connection.start([submit(str(n), max_tokens=900)]) for n in range(6)],
                return_exceptions=True,
            )
            refused = [each for each in started if isinstance(each, QueueFull)]
            accepted = [each for each in started if isinstance(each, EventStream)]
            for events in accepted:
                events.close()
            await until_idle(connection)

    assert accepted
    assert len(accepted) + len(refused) == 6
    assert refused
    assert all(each.retry_after > 0 for each in refused)


async def test_a_request_that_waited_too_long_is_told_so(tmp_path: Path) -> None:
    limits = Limits(max_batch_tokens=64, max_sequences=1, max_wait_seconds=0.05)
    runner = ScriptedRunner(emit([], then=5), before_step=lambda step: threading.Event().wait(0.005) and None)
    with serve_engine(runner, tmp_path, limits) as (address, _):
        async with connected(address) as connection:
            running = await connection.start([submit("long", max_tokens=900)])
            await anext(running)
            with pytest.raises(WaitedTooLong) as late:
                await collect(connection, submit("late"))
            assert late.value.retry_after > 0
            running.close()
            await until_idle(connection)


async def test_answers_that_come_in_a_heap_all_arrive(tmp_path: Path) -> None:
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, _):
        async with connected(address) as connection, asyncio.timeout(20):
            for _ in range(5):
                # what is sent meanwhile must not hide what has arrived
                answers = await asyncio.gather(*[connection.stats() for _ in range(300)])
                assert len(answers) == 300


async def test_a_connection_leaves_no_task_and_no_reader(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with served(ScriptedRunner(emit([], then=5)), tmp_path) as (address, _):
        async with connected(address) as connection:
            await collect(connection, submit())
            descriptor = connection._socket.fileno()
            assert asyncio.all_tasks() == before
        assert not asyncio.get_running_loop().remove_reader(descriptor)


async def test_how_far_a_prompt_is_can_be_asked_while_it_is_computed(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def before_step(step: Step) -> None:
        steps.append(step.num_tokens)
        if len(steps) == 2:
            reached.set()
            go_on.wait(10)

    runner = ScriptedRunner(emit([], then=7), before_step=before_step)
    with served(runner, tmp_path) as (address, _):
        async with connected(address) as connection:
            events = await connection.start([submit(prompt=(1,) * 600, max_tokens=400)])
            await asyncio.to_thread(reached.wait)
            asking = asyncio.create_task(connection.progress("r"))
            unknown = asyncio.create_task(connection.progress("x"))
            await asyncio.sleep(0)  # both are sent
            go_on.set()
            answers = await asking, await unknown
            events.close()

    assert answers in {(512, 0), (600, 0)}  # a step more, if the question was slow
