"""The whole gateway over the real engine with a scripted model: sockets, scheduling and blocks are real.

The server runs in the test's own event loop, the engine in a thread. A token of a prompt is a byte.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from engine.connection import EngineConnection
from engine.core import EngineCore, Runner
from engine.messages import EngineInfo, EngineStats
from engine.scheduler import Limits
from engine.step import Draw, SpanResult, Step, StepResult
from gateway.app import build_app
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.serving import bind
from gateway.settings import Settings
from tests.fakes import ByteTokenizer
from tests.gateway.talk import CHAT, body, events_of
from tests.live import scripted_services
from tests.prefix_cache.memory import DigestMemory
from tests.scripted import make_info, serve_engine

WAIT_SECONDS = 20
TEMPLATE_TOKENS = 19  # what CHATML adds to one message of a user


class Brake:
    """Holds the engine before one of its steps, from the first on counted from 1, until it is let go."""

    def __init__(self, before_step: int) -> None:
        self._num_left = before_step
        self._has_stopped = threading.Event()
        self._may_go = threading.Event()

    def __call__(self, step: Step) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            self._has_stopped.set()
            assert self._may_go.wait(WAIT_SECONDS), "nobody let the engine go"

    async def until_it_holds(self) -> None:
        assert await asyncio.to_thread(self._has_stopped.wait, WAIT_SECONDS), "the engine did not get there"

    def let_go(self) -> None:
        self._may_go.set()


def slowly(step: Step) -> None:
    """A forward pass that takes its time, so that things can happen while it lasts."""
    time.sleep(0.002)


class RememberingRunner:
    """Draws letters that depend on all tokens before them, as the sequence's own blocks hold them."""

    def __init__(self, num_blocks: int = 64, before_step: Callable[[Step], None] = lambda step: None) -> None:
        self.info = engine_info(num_blocks)
        self._memory = DigestMemory(num_blocks, self.info.block_size)
        self._before_step = before_step

    def run(self, step: Step) -> StepResult:
        self._before_step(step)
        self._memory.copy(step.copies)
        results = []
        for span in step.spans:
            sequence = span.sequence
            digest = self._memory.compute(sequence.block_table, sequence.tokens, span.start, span.end)
            number = int.from_bytes(digest, "little") // (1 + sequence.choice)
            drawn = (Draw(ord("a") + number % 26),) if span.draws else ()
            results.append(SpanResult(drawn))
        return StepResult(tuple(results))


@dataclass(frozen=True, slots=True)
class ScriptedGateway:
    """A server, a client of it, and what stands behind it."""

    client: httpx.AsyncClient
    connection: EngineConnection
    core: EngineCore  # to look at when it is idle
    num_requests: Callable[[], int]  # that the server is answering

    async def ask(self, num_bytes: int = 10, **fields: Any) -> httpx.Response:
        """A whole answer to a prompt whose message has so many bytes."""
        return await self.client.post(CHAT, json=saying(num_bytes, **fields))

    async def stream(self, num_bytes: int = 10, **fields: Any) -> list[Any]:
        """The events of a stream, read to its end."""
        return events_of((await self.ask(num_bytes, stream=True, **fields)).text)

    async def stats(self) -> EngineStats:
        return await self.connection.stats()

    async def until_nobody_is_answered(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while self.num_requests():
                await asyncio.sleep(0.005)

    async def until_idle(self) -> EngineStats:
        """Wait until nothing runs, waits or is held; then every block must be accounted for."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (now := await self.stats()).num_running or now.num_waiting or now.num_held_blocks:
                await asyncio.sleep(0.005)
        assert now.num_free_blocks + now.num_cached_blocks == now.num_blocks
        self.core.scheduler.check_invariants()
        return now


def saying(num_bytes: int, first: str = "x", **fields: Any) -> dict[str, Any]:
    """A chat request whose one message has so many bytes; another `first` one shares no prefix of it."""
    return body(messages=[{"role": "user", "content": first * num_bytes}], **fields)


def engine_info(num_blocks: int = 64, context_length: int = 4096) -> EngineInfo:
    """An engine that knows the tokens of ByteTokenizer."""
    return make_info(vocab_size=1024, num_blocks=num_blocks, context_length=context_length)


@asynccontextmanager
async def scripted_gateway(
    runner: Runner,
    folder: Path,
    *,
    tokenizer: ByteTokenizer | None = None,
    template: str = CHATML,
    settings: Settings | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[ScriptedGateway]:
    """Serve until the block ends."""
    text = TextModel(tokenizer or ByteTokenizer(), ChatTemplate(template), (257,))
    with serve_engine(runner, folder, limits) as (address, core):
        connection = EngineConnection(address)
        await asyncio.wait_for(connection.ready(), WAIT_SECONDS)
        services = scripted_services(connection, Prompts(text, transcript_bytes=1 << 20))
        app = build_app(settings or Settings(), services)
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server, listener = uvicorn.Server(config), bind("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS, limits=_UNLIMITED) as client:
                yield ScriptedGateway(client, connection, core, lambda: services.lifecycle.num_requests)
        finally:
            server.should_exit = True
            await serving
            await connection.close()


_UNLIMITED = httpx.Limits(max_connections=None)
