"""Connections to one server, used again where it allows, with bodies handed on as they arrive.

The load generator shares its machine with the server under test, so there is no task, no queue and no
stream object between the socket and whoever reads: bytes go to a callback with the time they came.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.load.http_reader import BrokenResponse, ResponseReader

__all__ = ["Address", "Connections", "OnBody"]

OnBody = Callable[[int, bytes, float], None]  # status, bytes of the body, time.perf_counter()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server's API is."""

    host: str
    port: int
    path: str  # of the API's root, without a slash at its end
    is_secure: bool

    @classmethod
    def parse(cls, url: str) -> "Address":
        """From `http://host:port/v1`. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        is_secure = parts.scheme == "https"
        if parts.query or parts.username is not None:
            raise ValueError(f"{url!r} has more than host, port and path, which is all that is asked")
        if parts.port == 0:
            raise ValueError(f"{url!r} names port 0, at which nobody listens")
        port = parts.port or (443 if is_secure else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), is_secure)

    @property
    def authority(self) -> str:
        """The value of the Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class _Exchange(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._on_body: OnBody | None = None
        self._done: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream connection has a stream's transport"
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            body = self.reader.feed(data)
        except BrokenResponse as error:
            self._finish(error)
            return
        if body and self._on_body is not None:
            self._on_body(self.reader.status, body, now)
        if self.reader.is_done:
            self._finish(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        now = time.perf_counter()
        try:
            self.reader.close()
        except BrokenResponse as error:
            self._finish(exc or error)
        else:
            self._finish(now)

    async def send(self, message: bytes, on_body: OnBody) -> float:
        """Send a request; returns when its response has ended, with the time of that. Raises OSError and
        BrokenResponse.
        """
        assert self._transport is not None, "sent before it was connected"
        self.reader = ResponseReader()
        self._on_body = on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return await self._done

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, outcome: float | Exception) -> None:
        done, self._done, self._on_body = self._done, None, None
        if done is None or done.done():
            self.close()  # it spoke, or ended, while nothing was asked
        elif isinstance(outcome, Exception):
            self.close()
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


class Connections:
    """As many connections to one server as there are requests at once."""

    def __init__(self, address: Address, key: str) -> None:
        self.address = address
        self._idle: list[_Exchange] = []
        self._head = (
            f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: {address.authority}\r\n"
            f"Authorization: Bearer {key}\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        )
        self._tls = ssl.create_default_context() if address.is_secure else None

    async def post(self, body: bytes, on_body: OnBody) -> tuple[int, float]:
        """Ask for a chat completion. Answers with the status, and the time.perf_counter() of the end.

        A kept connection that ends before a byte of the answer was closed in the meantime: the next is
        taken. Raises OSError and BrokenResponse.
        """
        message = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        while self._idle:
            exchange = self._idle.pop()
            if exchange.is_open:
                try:
                    return await self._send(exchange, message, on_body)
                except (OSError, BrokenResponse):
                    if not exchange.reader.is_untouched:
                        raise
        return await self._send(await self._connect(), message, on_body)

    def close(self) -> None:
        """Cut what is kept."""
        for exchange in self._idle:
            exchange.close()
        self._idle.clear()

    async def _send(self, exchange: _Exchange, message: bytes, on_body: OnBody) -> tuple[int, float]:
        try:
            ended = await exchange.send(message, on_body)
        except asyncio.CancelledError:
            exchange.close()
            raise
        if exchange.is_open and exchange.reader.keeps_alive:
            self._idle.append(exchange)
        else:
            exchange.close()
        return exchange.reader.status, ended

    async def _connect(self) -> _Exchange:
        loop = asyncio.get_running_loop()
        address = self.address
        _, exchange = await loop.create_connection(_Exchange, address.host, address.port, ssl=self._tls)
        return exchange
