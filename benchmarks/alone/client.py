"""A client that costs little, so that what is measured is the server: HTTP/1.1 read by counting, not parsing.

Every connection keeps asking as long as it is told to. Whatever is no 200 ends it with an error.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["Connection", "Counts", "Load", "post"]

_TOKEN = b'{"content":'  # only a delta that adds text begins so
_NUM_KEPT = len(_TOKEN) - 1  # bytes; with one more a token would count twice
_OK = b"HTTP/1.1 200"
_HEAD_END = b"\r\n\r\n"
_STREAM_END = b"\n\r\n0\r\n\r\n"


def post(path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over the wire."""
    content = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(content), content)


@dataclass(slots=True, eq=False)
class Counts:
    """What has come back, of all connections together."""

    num_answers: int = 0
    num_tokens: int = 0  # events that add text
    num_reads: int = 0


class Connection(asyncio.Protocol):
    """Asks, and asks again when it has been answered."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self.fail("the server closed the connection")

    def close(self) -> None:
        assert self._transport is not None
        if not self.done.done():
            self.done.set_result(None)
        self._transport.abort()

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(reason))

    def _ask(self) -> None:
        assert self._transport is not None
        self._transport.write(self.load.request)

    def answered(self) -> None:
        self.load.counts.num_answers += 1
        if self.load.goes_on():
            self._ask()
        else:
            self.close()


class _StreamReader(Connection):
    """Counts tokens. Of what came before it keeps just enough to see what is cut in two."""

    _before = b""
    _is_begun = False

    def data_received(self, data: bytes) -> None:
        counts = self.load.counts
        seen = self._before + data
        if not self._is_begun and not _OK.startswith(seen[: len(_OK)]):
            self.fail(seen[:300].decode(errors="replace"))
            return
        self._is_begun = self._is_begun or len(seen) >= len(_OK)
        counts.num_reads += 1
        counts.num_tokens += seen.count(_TOKEN)
        self.load.news.set()
        self._before = seen[-_NUM_KEPT:] if self._is_begun else seen
        if seen.endswith(_STREAM_END):
            self._before, self._is_begun = b"", False
            self.answered()


class _WholeReader(Connection):
    """Counts answers."""

    _read = b""

    def data_received(self, data: bytes) -> None:
        self.load.counts.num_reads += 1
        self._read += data
        if not _OK.startswith(self._read[: len(_OK)]):
            self.fail(self._read[:300].decode(errors="replace"))
            return
        head, end, body = self._read.partition(_HEAD_END)
        if end and len(body) == int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]):
            self._read = b""
            self.answered()


class Load:
    """Connections that send one request again and again while `goes_on` says so."""

    def __init__(self, port: int, request: bytes, goes_on: Callable[[], bool]) -> None:
        self.port = port
        self.request = request
        self.goes_on = goes_on
        self.counts = Counts()
        self.news = asyncio.Event()  # something has come
        self._connections: list[Connection] = []

    async def open(self, num_connections: int, *, streams: bool) -> None:
        """Connect, and ask for the first time. May be called again for more."""
        loop = asyncio.get_running_loop()
        for _ in range(num_connections):
            _, made = await loop.create_connection(
                lambda: self.reader(streams=streams), "127.0.0.1", self.port
            )
            self._connections.append(made)

    def reader(self, *, streams: bool) -> "Connection":
        """What reads one connection. Only inside a running loop."""
        return _StreamReader(self) if streams else _WholeReader(self)

    async def finish(self) -> Counts:
        """Wait until nobody goes on. Raises RuntimeError when a connection failed."""
        await asyncio.gather(*[each.done for each in self._connections])
        return self.counts

    async def has_heard(self, num_tokens: int) -> None:
        """Wait until so many tokens have come."""
        while self.counts.num_tokens < num_tokens:
            self.news.clear()
            await self.news.wait()

    def close(self) -> None:
        """Leave in the middle of everything."""
        for each in self._connections:
            each.close()
