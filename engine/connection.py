"""One client's end of the socket to an engine: submits, aborts, and hands each event to the request that
waits for it.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
import zmq

from engine.cache_messages import (
    CacheAnswer,
    CacheEvents,
    Forget,
    Forgotten,
    ListNodes,
    Locate,
    Moved,
    NodePage,
    Park,
    Pin,
    Pinned,
    Prefetch,
    Residency,
    Settle,
    Settled,
    TierName,
    Unpin,
    Watch,
)
from engine.errors import EngineDied, EngineError
from engine.event_stream import EventStream, to_error
from engine.messages import (
    Abort,
    Accepted,
    EngineInfo,
    EngineStats,
    FromEngine,
    GetProgress,
    GetStats,
    Hello,
    Progress,
    Ready,
    Refused,
    Stats,
    Submit,
    ToEngine,
    TokenEvent,
    TokenEvents,
)

__all__ = ["EngineConnection"]

Answer = Stats | Progress | CacheAnswer

_MAX_UNREAD = 256  # messages of events
_MAX_TOGETHER = 16  # messages; then others have their turn


@dataclass(slots=True, eq=False)
class _Watcher:
    """Who is told of events. One that does not keep up is told how many it has lost."""

    arrived: asyncio.Queue[CacheEvents | EngineError] = field(default_factory=asyncio.Queue)
    num_lost: int = 0

    def tell(self, message: CacheEvents) -> None:
        if self.arrived.qsize() >= _MAX_UNREAD:
            self.num_lost += len(message.events) + message.num_lost
            return
        self.arrived.put_nowait(CacheEvents(message.events, message.num_lost + self.num_lost))
        self.num_lost = 0


class EngineConnection:
    """Speaks to the engine at one address. Implements engine.client.Engine while that engine lives."""

    def __init__(self, address: str) -> None:
        # Read by the loop itself: a future and a poll for every message cost more than the message.
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a send never waits: the engine reads between any two steps
        self._socket.connect(address)
        self._info: EngineInfo | None = None
        self._became_ready = asyncio.Event()
        self._streams: dict[str, EventStream] = {}  # by the ids of their requests
        self._tickets = count()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._watchers: set[_Watcher] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
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

    async def start(self, submits: Sequence[Submit]) -> EventStream:
        """Submit requests that belong together; see engine.client.Engine."""
        if not self.is_ready:
            raise EngineDied("the engine is not ready")
        stream = EventStream(submits, send=self._send, forget=self._forget)
        self._streams.update({each.request_id: stream for each in submits})
        await stream.submit()
        return stream

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, soon."""
        stream = self._streams.get(request_id)
        if stream is not None and choice is not None:
            stream.drop(request_id, choice)
        self._send(Abort(request_id=request_id, choice=choice))

    async def stats(self) -> EngineStats:
        """The engine's figures. Raises EngineDied if it ends before it answers."""
        answer = await self._ask(GetStats(ticket := next(self._tickets)), ticket)
        assert isinstance(answer, Stats)
        return answer.stats

    async def progress(self, request_id: str) -> int:
        """How much of a prompt is there; see engine.client.Engine."""
        answer = await self._ask(GetProgress(ticket := next(self._tickets), request_id), ticket)
        assert isinstance(answer, Progress)
        return answer.num_prompt_tokens

    async def locate(self, namespace: bytes, tokens: bytes) -> Residency:
        """Where a prefix lies; see engine.client.Engine."""
        ticket = next(self._tickets)
        answer = await self._ask(Locate(ticket=ticket, namespace=namespace, tokens=tokens), ticket)
        assert isinstance(answer, Residency)
        return answer

    async def park(self, namespace: bytes, tokens: bytes) -> Moved:
        """Write a prefix to the coldest tier; see engine.client.Engine."""
        ticket = next(self._tickets)
        answer = await self._ask(Park(ticket=ticket, namespace=namespace, tokens=tokens), ticket)
        assert isinstance(answer, Moved)
        return answer

    async def prefetch(self, namespace: bytes, tokens: bytes) -> Moved:
        """Bring a prefix back; see engine.client.Engine."""
        ticket = next(self._tickets)
        answer = await self._ask(Prefetch(ticket=ticket, namespace=namespace, tokens=tokens), ticket)
        assert isinstance(answer, Moved)
        return answer

    async def forget(self, namespace: bytes, tokens: bytes, num_kept: int = 0) -> Forgotten:
        """Drop what a prefix alone holds; see engine.client.Engine."""
        ticket = next(self._tickets)
        message = Forget(ticket=ticket, namespace=namespace, tokens=tokens, num_kept=num_kept)
        answer = await self._ask(message, ticket)
        assert isinstance(answer, Forgotten)
        return answer

    async def pin(self, name: str, namespace: bytes, tokens: bytes, seconds: float | None) -> Pinned:
        """Keep a prefix on the device; see engine.client.Engine."""
        ticket = next(self._tickets)
        message = Pin(ticket=ticket, name=name, namespace=namespace, tokens=tokens, seconds=seconds)
        answer = await self._ask(message, ticket)
        assert isinstance(answer, Pinned)
        return answer

    async def unpin(self, name: str) -> None:
        """End a pin; see engine.client.Engine."""
        ticket = next(self._tickets)
        await self._ask(Unpin(ticket=ticket, name=name), ticket)

    async def nodes(self, tier: TierName, after: int, limit: int) -> NodePage:
        """A page of a tier's tree; see engine.client.Engine."""
        ticket = next(self._tickets)
        answer = await self._ask(ListNodes(ticket=ticket, tier=tier, after=after, limit=limit), ticket)
        assert isinstance(answer, NodePage)
        return answer

    async def settle(self) -> None:
        """Wait until nothing is on its way between tiers."""
        ticket = next(self._tickets)
        await self._ask(Settle(ticket=ticket), ticket)

    async def cache_events(self) -> AsyncGenerator[CacheEvents]:
        """What happens in the cache from now on; see engine.client.Engine."""
        if not self.is_ready:
            raise EngineDied("the engine is not ready")
        watcher = _Watcher()
        self._watchers.add(watcher)
        self._send(Watch(is_on=True))
        try:
            while True:
                item = await watcher.arrived.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._send(Watch(is_on=False))

    async def close(self, error: EngineError | None = None) -> None:
        """End every request that still waits, by default with EngineDied, and let the socket go."""
        self._fail(error or EngineDied("the engine has ended"))
        self._socket.close()

    def _fail(self, error: EngineError) -> None:
        """Tell everybody who waits; nothing is sent or read any more."""
        if not self._is_closed:
            self._loop.remove_reader(self._socket.fileno())
        self._is_closed = True
        for stream in set(self._streams.values()):
            stream.deliver(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
        for watcher in self._watchers:
            watcher.arrived.put_nowait(error)

    async def _ask(self, question: ToEngine, ticket: int) -> Answer:
        if not self.is_ready:
            raise EngineDied("the engine is not ready")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = future
        self._send(question)
        try:
            return await future
        finally:
            del self._answers[ticket]

    def _send(self, message: ToEngine) -> None:
        if self._is_closed:
            return
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        self._look_again()

    def _look_again(self) -> None:
        """Read what is there on the loop's next turn. The socket's descriptor tells of a message once, and
        whatever is done with the socket may take that away.
        """
        if int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Hand out what has arrived."""
        if self._is_closed:
            return
        try:
            for _ in range(_MAX_TOGETHER):
                self._deliver(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            self._fail(EngineError(f"the engine's messages cannot be read: {error}"))
            return
        self._look_again()

    def _deliver(self, message: FromEngine) -> None:
        match message:
            case TokenEvents():
                for event in message.events:
                    self._hand(event.request_id, event)
            case Accepted():
                self._hand(message.request_id, message)
            case Refused():
                self._hand(message.request_id, to_error(message))
            case Ready():
                self._info = message.info
                self._became_ready.set()
            case CacheEvents():
                for watcher in self._watchers:
                    watcher.tell(message)
            case (
                Stats() | Progress() | Residency() | Moved() | Forgotten() | Pinned() | NodePage() | Settled()
            ):
                future = self._answers.get(message.ticket)
                if future is not None and not future.done():
                    future.set_result(message)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def _hand(self, request_id: str, item: TokenEvent | Accepted | EngineError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.deliver(item)
