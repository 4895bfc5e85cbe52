"""Server-sent events as all routes send them: kept alive while nothing comes, and cut when nobody takes them.

A client that stops reading without leaving would hold its request for ever. Here it is treated as one that
left. The response is sse-starlette's, but it is delivered here: a timeout and three tasks for every event
cost more than all that the event is made of, see docs/decisions/012-events-in-one-task.md.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog
from anyio import CancelScope, move_on_after
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

__all__ = ["EventResponse", "News", "Pace"]

_KEEP_ALIVE = "keep-alive"
_CLEANUP_SECONDS = 30.0  # for what made the events, when the client has gone


News = Callable[[], Awaitable[str]]  # what a comment says beside that the stream lives; may be empty


async def _no_news() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often an idle stream says that it lives, and how long a client may take nothing; seconds."""

    ping_seconds: float
    send_timeout_seconds: float


class EventResponse(EventSourceResponse):
    """A stream that holds something until its last byte is sent or its client has gone."""

    def __init__(
        self, events: AsyncGenerator[bytes], pace: Pace, held: ExitStack, news: News = _no_news
    ) -> None:
        """What `events` yields is sent as it is, in one write: one event or several. `news` never raises."""
        super().__init__(
            events,
            media_type="text/event-stream; charset=utf-8",
            headers={"cache-control": "no-cache, no-store"},
        )
        self.events = events
        self.pace = pace
        self.held = held
        self.news = news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. The server closes a connection whose response has no end."""
        with self.held:
            if scope["method"] == "HEAD":
                await super().__call__(scope, receive, send)
                return
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            delivery = _Delivery(send, self.pace, self.news)
            await delivery.run(start, self.events, receive)
            if delivery.was_late:
                structlog.get_logger().info("stream.not_read", path=scope["path"])


class _Delivery:
    """Events on their way to one client. The client's silence is told by one timer, whatever is sent."""

    def __init__(self, send: Send, pace: Pace, news: News = _no_news) -> None:
        self.was_late = False  # whether the client took nothing for too long
        self._send = send
        self._pace = pace
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._scope = CancelScope()
        self._sending_since: float | None = None  # seconds of the loop's clock
        self._is_over = False
        self._ping: asyncio.Task[None] | None = None
        self._next_ping = self._loop.call_later(pace.ping_seconds, self._keep_alive)
        self._next_look = self._loop.call_later(pace.send_timeout_seconds, self._look)

    async def run(self, start: Message, events: AsyncGenerator[bytes], receive: Receive) -> None:
        """Deliver all, or as much as the client takes. Raises what `events` raises."""
        watcher = self._loop.create_task(self._until_gone(receive))
        try:
            with self._scope:
                await self._deliver(start, events)
        finally:
            self._is_over = True
            self._next_ping.cancel()
            self._next_look.cancel()
            watcher.cancel()
            if self._ping is not None:
                self._ping.cancel()
            with move_on_after(_CLEANUP_SECONDS, shield=True):
                await events.aclose()

    async def _deliver(self, start: Message, events: AsyncGenerator[bytes]) -> None:
        self._sending_since = self._loop.time()
        await self._send(start)
        self._sending_since = None
        async for data in events:
            self._sending_since = self._loop.time()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending_since = None
        self._is_over = True
        self._sending_since = self._loop.time()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._scope.cancel()

    def _look(self) -> None:
        """Give the client up if a write has waited for it too long; else look again when one may have."""
        now, since = self._loop.time(), self._sending_since
        if since is not None and now - since >= self._pace.send_timeout_seconds:
            self.was_late = True
            self._scope.cancel()
            return
        due = (now if since is None else since) + self._pace.send_timeout_seconds
        self._next_look = self._loop.call_at(due, self._look)

    def _keep_alive(self) -> None:
        self._ping = self._loop.create_task(self._send_comment())
        self._next_ping = self._loop.call_later(self._pace.ping_seconds, self._keep_alive)

    async def _send_comment(self) -> None:
        news = await self._news()
        if self._is_over or self._sending_since is not None:
            return  # a client that keeps a write waiting has no use for a comment
        comment = ServerSentEvent(comment=f"{_KEEP_ALIVE} {news}".rstrip(), sep="\n").encode()
        self._sending_since = self._loop.time()
        await self._send({"type": "http.response.body", "body": comment, "more_body": True})
        self._sending_since = None
