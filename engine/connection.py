"""One client's end of the socket to an engine: submits, aborts, and hands each event to the request that
waits for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import count

import msgspec
import zmq
import zmq.asyncio

from engine.errors import EngineDied, EngineError, EngineStopping, RequestRefused
from engine.messages import (
    Abort,
    EngineInfo,
    EngineStats,
    FromEngine,
    GetStats,
    Hello,
    Ready,
    Refused,
    Stats,
    Submit,
    ToEngine,
    TokenEvent,
    TokenEvents,
)

__all__ = ["EngineConnection"]

_ERRORS: dict[str, type[EngineError]] = {
    "refused": RequestRefused,
    "failed": EngineError,
    "stopping": EngineStopping,
}


@dataclass(slots=True, eq=False)
class _Stream:
    """One request that waits for events: which choices may still have news, and what has arrived."""

    remaining: set[int]
    arrived: asyncio.Queue[TokenEvent | EngineError | None] = field(
        default_factory=asyncio.Queue
    )  # None: look again


class EngineConnection:
    """Speaks to the engine at one address. Implements engine.client.Engine while that engine lives."""

    def __init__(self, address: str) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a send never waits: the engine reads between any two steps
        self._socket.connect(address)
        self._info: EngineInfo | None = None
        self._became_ready = asyncio.Event()
        self._streams: dict[str, _Stream] = {}
        self._tickets = count()
        self._stats: dict[int, asyncio.Future[EngineStats]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._is_closed = False
        self._reader = asyncio.create_task(self._read())
        self._send(Hello())

    @property
    def info(self) -> EngineInfo:
        """What the engine turned out to be."""
        assert self._info is not None, "the engine has not been ready yet"
        return self._info

    @property
    def is_ready(self) -> bool:
        """Whether requests are served now."""
        return self._info is not None and not self._is_closed

    async def ready(self) -> EngineInfo:
        """Wait until requests are served."""
        await self._became_ready.wait()
        return self.info

    async def generate(self, submit: Submit) -> AsyncGenerator[TokenEvent]:
        """Run a request; see engine.client.Engine."""
        if not self.is_ready:
            raise EngineDied("the engine is not ready")
        stream = _Stream(set(range(submit.num_choices)))
        self._streams[submit.request_id] = stream
        self._send(submit)
        try:
            while stream.remaining:
                item = await stream.arrived.get()
                if isinstance(item, EngineError):
                    raise item
                if item is None or item.choice not in stream.remaining:
                    continue
                if item.finish_reason is not None:
                    stream.remaining.discard(item.choice)
                yield item
        finally:
            del self._streams[submit.request_id]
            # Aborting what has ended is harmless, and tells the engine that nobody listens any more.
            self._send(Abort(request_id=submit.request_id))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, soon."""
        stream = self._streams.get(request_id)
        if stream is not None and choice is not None:
            stream.remaining.discard(choice)
            stream.arrived.put_nowait(None)
        self._send(Abort(request_id=request_id, choice=choice))

    async def stats(self) -> EngineStats:
        """The engine's figures. Raises EngineDied if it ends before it answers."""
        if not self.is_ready:
            raise EngineDied("the engine is not ready")
        ticket = next(self._tickets)
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats[ticket] = future
        self._send(GetStats(ticket))
        try:
            return await future
        finally:
            del self._stats[ticket]

    async def close(self, error: EngineError | None = None) -> None:
        """End every request that still waits, by default with EngineDied, and let the socket go."""
        error = error or EngineDied("the engine has ended")
        self._is_closed = True
        for stream in self._streams.values():
            stream.arrived.put_nowait(error)
        for future in self._stats.values():
            if not future.done():
                future.set_exception(error)
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._socket.close()

    def _send(self, message: ToEngine) -> None:
        if not self._is_closed:
            self._socket.send(self._encoder.encode(message))

    async def _read(self) -> None:
        while True:
            message: FromEngine = self._decoder.decode(await self._socket.recv())
            match message:
                case TokenEvents():
                    for event in message.events:
                        self._deliver(event.request_id, event)
                case Refused():
                    self._deliver(message.request_id, _ERRORS[message.kind](message.message))
                case Ready():
                    self._info = message.info
                    self._became_ready.set()
                case Stats():
                    future = self._stats.get(message.ticket)
                    if future is not None and not future.done():
                        future.set_result(message.stats)

    def _deliver(self, request_id: str, item: TokenEvent | EngineError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.arrived.put_nowait(item)
