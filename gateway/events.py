"""Server-sent events as all routes send them: kept alive while nothing comes, and cut when nobody takes them.

A client that stops reading without leaving would hold its request for ever. Here it is treated as one that
left.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass

import structlog
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

__all__ = ["EventResponse", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often an idle stream says that it lives, and how long a client may take nothing; seconds."""

    ping_seconds: float
    send_timeout_seconds: float


class EventResponse(EventSourceResponse):
    """A stream that holds something until its last byte is sent or its client has gone."""

    def __init__(self, events: AsyncGenerator[bytes], pace: Pace, held: ExitStack) -> None:
        super().__init__(
            events,
            media_type="text/event-stream; charset=utf-8",
            headers={"cache-control": "no-cache, no-store"},
            # the library's own default, \r\n, is legal, but simple clients split at "\n\n"
            sep="\n",
            ping=pace.ping_seconds,
            ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
            send_timeout=pace.send_timeout_seconds,
        )
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. The server closes a connection whose response has no end."""
        with self.held:
            try:
                await super().__call__(scope, receive, send)
            except* SendTimeoutError:
                structlog.get_logger().info("stream.not_read", path=scope["path"])
