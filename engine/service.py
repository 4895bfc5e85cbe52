"""Carries messages between an EngineCore and the clients of one socket.

One thread both serves the socket and steps: messages are handled between steps, so an abort takes effect
before the next one begins.
"""

import contextlib
import threading
from collections.abc import Callable

import msgspec
import zmq

from engine.core import EngineCore
from engine.messages import (
    Abort,
    FromEngine,
    GetStats,
    Hello,
    Ready,
    Refused,
    Stats,
    Submit,
    ToEngine,
    TokenEvents,
)

__all__ = ["EngineService"]

_IDLE_POLL_MS = 100
_POLLS_TO_REST = 10


class EngineService:
    """Carries messages between an EngineCore and the clients of one ROUTER socket."""

    def __init__(
        self, core: EngineCore, socket: "zmq.Socket[bytes]", *, on_rest: Callable[[], None] = lambda: None
    ) -> None:
        """`on_rest` is called once whenever there has been no work for about a second."""
        self._core = core
        self._on_rest = on_rest
        self._socket = socket
        self._owners: dict[str, bytes] = {}  # request id -> the client it came from
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def run(self, should_stop: threading.Event) -> None:
        """Serve until told to stop. Waits for messages when there is nothing to compute."""
        num_idle_polls = 0
        while not should_stop.is_set():
            self._receive(timeout_ms=0 if self._core.has_work else _IDLE_POLL_MS)
            num_idle_polls = 0 if self._core.has_work else num_idle_polls + 1
            if num_idle_polls == _POLLS_TO_REST:
                self._on_rest()
            if self._core.has_work:
                self._publish(self._core.step())

    def _receive(self, timeout_ms: int) -> None:
        """Handle every message that is there; wait for the first one."""
        if not self._socket.poll(timeout_ms):
            return
        with contextlib.suppress(zmq.Again):
            while True:
                client, frame = self._socket.recv_multipart(zmq.NOBLOCK)
                self._handle(client, self._decoder.decode(frame))

    def _handle(self, client: bytes, message: ToEngine) -> None:
        match message:
            case Hello():
                self._send(client, Ready(self._core.info))
            case Submit():
                refused = self._core.submit(message)
                if refused is not None:
                    self._send(client, refused)
                else:
                    self._owners[message.request_id] = client
            case Abort():
                self._core.abort(message)
                if message.choice is None:
                    self._owners.pop(message.request_id, None)
            case GetStats():
                self._send(client, Stats(message.ticket, self._core.stats()))

    def _publish(self, messages: list[FromEngine]) -> None:
        for message in messages:
            match message:
                case TokenEvents():
                    self._publish_events(message)
                case Refused():
                    client = self._owners.pop(message.request_id, None)
                    if client is not None:
                        self._send(client, message)

    def _publish_events(self, message: TokenEvents) -> None:
        """One frame a client and step, however many sequences it serves."""
        by_client: dict[bytes, TokenEvents] = {}
        for event in message.events:
            client = self._owners.get(event.request_id)
            if client is not None:
                by_client.setdefault(client, TokenEvents([])).events.append(event)
        for client, events in by_client.items():
            self._send(client, events)

    def _send(self, client: bytes, message: FromEngine) -> None:
        self._socket.send_multipart([client, self._encoder.encode(message)])
