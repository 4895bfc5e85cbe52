"""The HTTP server, and how it ends.

    first SIGTERM or Ctrl-C    drain: new requests get 503, running ones may end within the limit
    second one                 cut what still runs, and end

The listening socket is bound before the engine is started, so a port in use costs nothing.
"""

import asyncio
import gc
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gateway.lifecycle import Lifecycle

__all__ = ["AddressUnavailable", "DrainingServer", "bind", "run", "settle_heap"]

Cut = Callable[[], Awaitable[None]]

_GARBAGE_OBJECTS = 10_000  # more than a request makes; the interpreter's own 700 come with every other one

# clients of what was cut have this long to hear of it
_FAREWELL_SECONDS = 1


class AddressUnavailable(Exception):
    """The address cannot be listened on; the message says why and what to do."""


class DrainingServer(uvicorn.Server):
    """uvicorn, but a signal drains instead of closing the door at once."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, *, drain_seconds: float, cut: Cut) -> None:
        """`cut` ends the work that is left when draining is over; it is awaited at most once."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=_FAREWELL_SECONDS,
            )
        )
        self.lifecycle = lifecycle
        self.drain_seconds = drain_seconds
        self.drain_ends = float("inf")
        self.cut = cut

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for every signal."""
        if self.lifecycle.is_draining:
            self.force_exit = self.should_exit
            self.drain_ends = 0.0
            return
        self.lifecycle.is_draining = True
        self.drain_ends = time.monotonic() + self.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; True ends the server."""
        if self.lifecycle.is_draining:
            is_late = time.monotonic() >= self.drain_ends
            if is_late:
                await self.cut()
            self.should_exit = is_late or self.lifecycle.num_requests == 0
        return await super().on_tick(counter)

    def end(self) -> None:
        """Leave without draining: a part of the server has failed."""
        self.should_exit = True

    def stop(self) -> None:
        """Begin to drain, as a signal does."""
        self.handle_exit(signal.SIGTERM, None)


def run(main: Coroutine[None, None, None]) -> None:
    """Run a server to its end, on the loop that servers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def settle_heap() -> None:
    """Keep the collector away from all that stays: modules, vocabulary, routes. Called once, when they are
    there; else a full collection walks some hundred thousand objects while every stream waits.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening. Raises AddressUnavailable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # the protocol is named, for asyncio turns Nagle's delays off only on sockets that say they are TCP
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise AddressUnavailable(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port"
        ) from None
    return listener
