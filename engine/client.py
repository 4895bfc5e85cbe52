"""The asynchronous face of the engine: what the gateway holds, and the process behind it.

The process is started, watched and replaced here. It ends when its standard input closes, so it cannot
outlive us; when it ends first, requests that ran get EngineDied at once and a new one is started.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from engine.cache_messages import CacheEvents, Forgotten, Moved, NodePage, Pinned, Residency, TierName
from engine.connection import EngineConnection
from engine.errors import EngineDied, EngineError, EngineStopping
from engine.event_stream import Events
from engine.messages import EngineConfig, EngineInfo, EngineStats, Submit
from engine.protocol import protocol_digest
from engine.vocabulary import Vocabulary, write_vocabulary

__all__ = ["Engine", "EngineProcess", "Events"]

_MAX_RESTART_DELAY_SECONDS = 30.0
_SETTLE_SECONDS = 5.0

# How long an OpenMP thread that waits for another burns its core before it sleeps. The library's own 300,000
# made steps a hundred times slower as soon as another process was busy too; none at all made them twice as
# slow on a quiet machine. See docs/decisions/006-short-spins.md.
_SPIN_COUNT = "2000"


class Engine(Protocol):
    """An engine, wherever it runs."""

    @property
    def info(self) -> EngineInfo:
        """What the engine turned out to be. Only after it has been ready once."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether requests are served now: not while the model loads or a dead engine is replaced."""
        ...

    async def start(self, submits: Sequence[Submit]) -> Events:
        """Submit requests that belong together, and wait until all of them are queued. Their events follow.

        If one is refused the others are aborted, and its error is raised: RequestRefused, QueueFull,
        EngineStopping or EngineDied. Later ones come out of the events, WaitedTooLong among them. Closing the
        events, or cancelling the task that waits for one, aborts what still runs. A choice that was aborted
        alone has no more events.
        """
        ...

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, soon. No further event of it need be expected."""
        ...

    async def stats(self) -> EngineStats:
        """The engine's figures. Raises EngineDied if it ends before it answers, as all that follow do."""
        ...

    async def progress(self, request_id: str) -> int:
        """How many tokens of a running request's prompt are there, found or computed; none of one that
        waits.
        """
        ...

    async def locate(self, namespace: bytes, tokens: bytes) -> Residency:
        """Where a prefix (packed int32 ids) lies now. Holds nothing and refreshes nothing."""
        ...

    async def park(self, namespace: bytes, tokens: bytes) -> Moved:
        """Write a prefix to the coldest tier there is, and let it leave the device. Returns when what was
        there is durable.
        """
        ...

    async def prefetch(self, namespace: bytes, tokens: bytes) -> Moved:
        """Bring a prefix back to the device before anybody asks for it. Returns when it is there."""
        ...

    async def forget(self, namespace: bytes, tokens: bytes, num_kept: int = 0) -> Forgotten:
        """Drop from every tier what this prefix alone holds; what others share or use now stays, and so do
        its first `num_kept` tokens.
        """
        ...

    async def pin(self, name: str, namespace: bytes, tokens: bytes, seconds: float | None) -> Pinned:
        """Keep on the device what is there of a prefix, for some seconds or until `unpin`. A pin of the same
        name is replaced. The answer says how much is kept, or why nothing is.
        """
        ...

    async def unpin(self, name: str) -> None:
        """End a pin; an unknown name is ignored."""
        ...

    async def nodes(self, tier: TierName, after: int, limit: int) -> NodePage:
        """A page of one tier's tree: nodes with serials above `after`, oldest first."""
        ...

    def cache_events(self) -> AsyncGenerator[CacheEvents]:
        """What happens to full blocks from now on, until the generator is closed. Raises EngineDied."""
        ...


class EngineProcess:
    """An engine in a child process, replaced when it dies. Implements Engine; use as `async with`."""

    def __init__(self, config: EngineConfig, vocabulary: Vocabulary | None = None) -> None:
        """Without a vocabulary no answer can be held to a grammar."""
        self._folder = Path(tempfile.mkdtemp(prefix="stemma-"))  # only this user can enter it
        if vocabulary is not None:
            path = self._folder / "vocabulary"
            write_vocabulary(vocabulary, path)
            config = msgspec.structs.replace(config, vocabulary=str(path))
        self._config = config
        self._info: EngineInfo | None = None
        self._num_starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._connection: EngineConnection | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the engine and wait until it is ready. Raises EngineError if it ends before that."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        self._supervisor = asyncio.create_task(self._supervise())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def info(self) -> EngineInfo:
        """What the engine turned out to be."""
        assert self._info is not None, "the engine has not been ready yet"
        return self._info

    @property
    def is_ready(self) -> bool:
        """Whether requests are served now."""
        return self._connection is not None and self._connection.is_ready

    async def start(self, submits: Sequence[Submit]) -> Events:
        """Submit requests that belong together; see Engine."""
        return await self._connected().start(submits)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, soon."""
        if self._connection is not None:
            self._connection.abort(request_id, choice)

    async def stats(self) -> EngineStats:
        """The engine's figures. Raises EngineDied if it ends before it answers."""
        return await self._connected().stats()

    async def progress(self, request_id: str) -> int:
        """How much of a prompt is there; see Engine."""
        return await self._connected().progress(request_id)

    async def locate(self, namespace: bytes, tokens: bytes) -> Residency:
        """Where a prefix lies; see Engine."""
        return await self._connected().locate(namespace, tokens)

    async def park(self, namespace: bytes, tokens: bytes) -> Moved:
        """Write a prefix to the coldest tier; see Engine."""
        return await self._connected().park(namespace, tokens)

    async def prefetch(self, namespace: bytes, tokens: bytes) -> Moved:
        """Bring a prefix back; see Engine."""
        return await self._connected().prefetch(namespace, tokens)

    async def forget(self, namespace: bytes, tokens: bytes, num_kept: int = 0) -> Forgotten:
        """Drop what a prefix alone holds; see Engine."""
        return await self._connected().forget(namespace, tokens, num_kept)

    async def pin(self, name: str, namespace: bytes, tokens: bytes, seconds: float | None) -> Pinned:
        """Keep a prefix on the device; see Engine."""
        return await self._connected().pin(name, namespace, tokens, seconds)

    async def unpin(self, name: str) -> None:
        """End a pin; see Engine."""
        await self._connected().unpin(name)

    async def nodes(self, tier: TierName, after: int, limit: int) -> NodePage:
        """A page of a tier's tree; see Engine."""
        return await self._connected().nodes(tier, after, limit)

    async def cache_events(self) -> AsyncGenerator[CacheEvents]:
        """What happens in the cache from now on; see Engine."""
        async with contextlib.aclosing(self._connected().cache_events()) as events:
            async for each in events:
                yield each

    async def close(self) -> None:
        """End the engine, and whatever still runs on it."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        await self._settle()
        await self._disconnect(EngineStopping("the engine is shutting down"))
        await self._end_process()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connected(self) -> EngineConnection:
        if self._connection is None:
            raise EngineDied("the engine is being replaced")
        return self._connection

    async def _start(self) -> None:
        self._num_starts += 1
        address = f"ipc://{self._folder}/engine-{self._num_starts}.sock"
        # A session of its own: a terminal's Ctrl-C is the gateway's to handle, which drains first.
        self._process = await asyncio.create_subprocess_exec(
            # -P: the folder that the user stands in may hold an engine.py of its own.
            *(sys.executable, "-P", "-m", "engine", address, protocol_digest()),
            env={"GOMP_SPINCOUNT": _SPIN_COUNT, **os.environ},
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        connection = EngineConnection(address)
        ready = asyncio.create_task(connection.ready())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise EngineError(
                    f"the engine could not start (exit code {ended.result()}): see its message above"
                )
            self._info = ready.result()
            self._connection = connection
        finally:
            for task in (ready, ended):
                task.cancel()
            if self._connection is not connection:
                await connection.close()

    async def _supervise(self) -> None:
        """Replace the engine whenever it ends; wait longer each time it does not even start."""
        delay_seconds = 0.5
        while True:
            if self._process is not None:
                await self._process.wait()
            await self._disconnect(EngineDied("the engine ended while the request ran"))
            try:
                await self._start()
                delay_seconds = 0.5
            except (EngineError, OSError):
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(2 * delay_seconds, _MAX_RESTART_DELAY_SECONDS)

    async def _settle(self) -> None:
        """Let what is being written to colder tiers arrive there, for a while."""
        connection = self._connection
        if connection is None or not connection.is_ready:
            return
        with contextlib.suppress(TimeoutError, EngineError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await connection.settle()

    async def _disconnect(self, error: EngineError) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(error)

    async def _end_process(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()  # it holds nothing more that must be saved
            await self._process.wait()
