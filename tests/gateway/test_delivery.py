"""What a stream costs and leaves: writes, tasks, timers; counted, not timed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import Message

from gateway.events import EventResponse, Pace

pytestmark = pytest.mark.anyio

FOR_EVER = 3600.0
PATIENT = Pace(ping_seconds=FOR_EVER, send_timeout_seconds=FOR_EVER)
SCOPE = {"type": "http", "method": "GET", "path": "/x"}


class Client:
    """Takes what is sent until it is told to stop taking, and may leave."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self.left = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        self.sent.append(message)

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


class Source:
    """Yields what it is given, then waits or fails; knows whether it was closed."""

    def __init__(self, *parts: bytes, then: Callable[[], Any] | None = None) -> None:
        self.parts = parts
        self.then = then
        self.is_closed = False

    async def events(self) -> AsyncGenerator[bytes]:
        try:
            for part in self.parts:
                yield part
            if self.then is not None:
                await self.then()
        finally:
            self.is_closed = True


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise KeyError("x")


def response(source: Source, pace: Pace = PATIENT) -> tuple[EventResponse, list[str]]:
    """The response, and what is written down when it lets go of what it held."""
    held, freed = ExitStack(), []
    held.callback(freed.append, "freed")
    return EventResponse(source.events(), pace, held), freed


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_part_is_one_write_and_the_end_another() -> None:
    client, source = Client(), Source(b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n")
    answer, freed = response(source)

    await answer(SCOPE, client.receive, client.send)

    assert client.bodies == [b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n", b""]
    assert [message["more_body"] for message in client.sent[1:]] == [True, True, False]
    assert freed == ["freed"]
    assert source.is_closed


async def test_an_event_makes_no_task() -> None:
    client = Client()
    seen: list[int] = []

    async def count() -> None:
        seen.append(len(asyncio.all_tasks()))

    class Counted(Source):
        async def events(self) -> AsyncGenerator[bytes]:
            for _ in range(50):
                await count()
                yield b"data: x\n\n"

    before = len(asyncio.all_tasks())
    answer, _ = response(Counted())
    await answer(SCOPE, client.receive, client.send)

    assert set(seen) == {before + 1}, "one task watches the client, whatever is sent"


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_stream_leaves_neither_task_nor_timer(leaves: bool) -> None:
    before = asyncio.all_tasks()
    clients = [Client() for _ in range(50)]
    sources = [Source(b"data: 1\n\n", then=for_ever if leaves else None) for _ in clients]
    answers = [response(source) for source in sources]
    running = [
        asyncio.create_task(answer(SCOPE, client.receive, client.send))
        for (answer, _), client in zip(answers, clients, strict=True)
    ]
    await settle()
    for client in clients:
        client.left.set()
    await asyncio.gather(*running)
    await settle()

    assert asyncio.all_tasks() == before
    assert all(source.is_closed for source in sources)
    assert [freed for _, freed in answers] == [["freed"]] * 50


async def test_of_a_stream_that_has_ended_no_timer_keeps_anything() -> None:
    client = Client()
    answer, _ = response(Source(b"data: 1\n\n"))
    await answer(SCOPE, client.receive, client.send)
    await settle()
    trace = weakref.ref(client)

    del client, answer
    gc.collect()

    assert trace() is None


async def test_a_client_that_leaves_ends_what_makes_the_events() -> None:
    client, source = Client(), Source(b"data: 1\n\n", then=for_ever)
    answer, freed = response(source)
    running = asyncio.create_task(answer(SCOPE, client.receive, client.send))
    await settle()
    assert not source.is_closed

    client.left.set()
    await running

    assert source.is_closed
    assert freed == ["freed"]
    assert client.bodies == [b"data: 1\n\n"], "a stream that was cut has no end"


@pytest.mark.parametrize("num_taken", [0, 1, 2], ids=["the head", "an event", "the end"])
async def test_a_write_that_nobody_takes_is_given_up(num_taken: int) -> None:
    client, source = Client(), Source(b"data: 1\n\n")
    answer, freed = response(source, Pace(ping_seconds=FOR_EVER, send_timeout_seconds=0.02))

    async def send(message: Message) -> None:
        if len(client.sent) == num_taken:
            await for_ever()
        await client.send(message)

    await asyncio.wait_for(answer(SCOPE, client.receive, send), 5)

    assert freed == ["freed"]
    assert source.is_closed == (num_taken > 0), "what was never begun has nothing to close"
    assert len(client.sent) == num_taken


async def test_a_client_that_takes_all_is_never_given_up_however_long_it_lasts() -> None:
    async def three_timeouts() -> None:
        await asyncio.sleep(0.06)

    client, source = Client(), Source(b"data: 1\n\n", then=three_timeouts)
    answer, _ = response(source, Pace(ping_seconds=FOR_EVER, send_timeout_seconds=0.02))

    await answer(SCOPE, client.receive, client.send)

    assert client.bodies == [b"data: 1\n\n", b""]


async def test_comments_come_while_nothing_else_does_and_never_after_the_end() -> None:
    enough = asyncio.Event()
    client, source = Client(), Source(then=enough.wait)
    answer, _ = response(source, Pace(ping_seconds=0.001, send_timeout_seconds=FOR_EVER))
    running = asyncio.create_task(answer(SCOPE, client.receive, client.send))
    while client.bodies.count(b": keep-alive\n\n") < 3:
        await asyncio.sleep(0.001)
    enough.set()
    await running
    await asyncio.sleep(0.01)

    assert client.bodies[-1] == b""
    assert set(client.bodies[:-1]) == {b": keep-alive\n\n"}


async def test_while_a_write_waits_no_comments_pile_up_behind_it() -> None:
    client, source = Client(), Source(b"data: 1\n\n")
    answer, _ = response(source, Pace(ping_seconds=0.001, send_timeout_seconds=FOR_EVER))
    client.takes.clear()
    before = asyncio.all_tasks()
    running = asyncio.create_task(answer(SCOPE, client.receive, client.send))
    await asyncio.sleep(0.02)
    num_tasks = len(asyncio.all_tasks() - before)
    client.takes.set()
    await running

    assert num_tasks <= 3, "the stream, who watches the client, and one comment at most"
    assert client.bodies[-2:] == [b"data: 1\n\n", b""]


async def test_a_comment_that_nobody_takes_is_given_up_too() -> None:
    client, source = Client(), Source(b"data: 1\n\n", then=for_ever)
    answer, freed = response(source, Pace(ping_seconds=0.02, send_timeout_seconds=0.02))
    running = asyncio.create_task(answer(SCOPE, client.receive, client.send))
    await settle()
    client.takes.clear()

    await asyncio.wait_for(running, 5)

    assert freed == ["freed"]
    assert source.is_closed


async def test_a_failure_is_raised_and_everything_let_go() -> None:
    before = asyncio.all_tasks()
    client, source = Client(), Source(b"data: 1\n\n", then=fail)
    answer, freed = response(source)

    with pytest.raises(KeyError):
        await answer(SCOPE, client.receive, client.send)
    await settle()

    assert client.bodies == [b"data: 1\n\n"]
    assert freed == ["freed"]
    assert asyncio.all_tasks() == before


async def test_who_is_cancelled_lets_everything_go() -> None:
    client, source = Client(), Source(b"data: 1\n\n", then=for_ever)
    answer, freed = response(source)
    running = asyncio.create_task(answer(SCOPE, client.receive, client.send))
    await settle()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert freed == ["freed"]
    assert source.is_closed


async def test_to_ask_for_the_head_alone_starts_nothing() -> None:
    client, source = Client(), Source(b"data: 1\n\n")
    answer, freed = response(source)

    await answer({**SCOPE, "method": "HEAD"}, client.receive, client.send)

    assert client.bodies == [b""]
    assert freed == ["freed"]
