"""Carries messages between an EngineCore and the clients of one socket.

One thread serves the socket and schedules; steps may compute on another. Messages are handled while they do,
and an abort takes effect before the next one begins.
"""

import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import zmq

from engine.cache_messages import (
    CacheMessage,
    Forget,
    Forgotten,
    ListNodes,
    Locate,
    Park,
    Pin,
    Prefetch,
    Settle,
    Settled,
    Unpin,
    Watch,
)
from engine.cache_service import Errand
from engine.core import EngineCore
from engine.messages import (
    Abort,
    Accepted,
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
    TokenEvents,
)
from engine.stepping import StepThread

__all__ = ["EngineService"]

_IDLE_POLL_MS = 100
_STEP_POLL_MS = 100  # while a step computes; its end wakes
_MOVING_POLL_MS = 2
_POLLS_TO_REST = 10


@dataclass(slots=True, eq=False)
class _Owner:
    """Who asked for something, and how much of it has not had its end."""

    client: bytes
    num_open: int  # choices


@dataclass(frozen=True, slots=True)
class _Preparation:
    """A request that is not the core's yet."""

    client: bytes
    message: Submit
    compiling: Future[None]


class EngineService:
    """Carries messages between an EngineCore and the clients of one ROUTER socket."""

    def __init__(
        self,
        core: EngineCore,
        socket: "zmq.Socket[bytes]",
        *,
        wake: StepThread | None = None,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is the thread that the core's steps run on, if it is another one. `on_rest` is called once
        whenever there has been no work for about a second.
        """
        self._core = core
        self._wake = wake
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        if wake is not None:
            self._poller.register(wake.wake_fd, zmq.POLLIN)
        self._on_rest = on_rest
        self._socket = socket
        self._owners: dict[str, _Owner] = {}  # by the ids of their requests
        self._errands: list[tuple[bytes, Errand]] = []  # parks and prefetches that go on, and who waits
        self._preparing: dict[str, _Preparation] = {}  # requests whose grammars are compiled
        self._to_forget: list[tuple[bytes, Forget]] = []
        self._forgotten: list[tuple[bytes, Forgotten]] = []  # told when the disk has forgotten, too
        self._settlers: list[tuple[bytes, int]] = []  # who waits until nothing moves
        self._watchers: set[bytes] = set()  # clients that are told what happens in the cache
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def run(self, should_stop: threading.Event) -> None:
        """Serve until told to stop. Waits for messages when there is nothing to compute."""
        num_idle_polls = 0
        while not should_stop.is_set():
            is_busy = self._core.has_work or self._core.is_moving
            self._receive(timeout_ms=self._patience_ms())
            self._submit_prepared()
            num_idle_polls = 0 if is_busy else num_idle_polls + 1
            if num_idle_polls == _POLLS_TO_REST:
                self._on_rest()
            self._advance()
            self._run_errands()
            self._tell_watchers()

    def _advance(self) -> None:
        """Take in the step that is over and begin the next one; only then tell what it brought."""
        core = self._core
        news = core.tend()
        if core.is_step_done:
            news += core.finish()
            self._receive(timeout_ms=0)  # an abort that came meanwhile takes effect before the next step
        if not core.is_running:
            self._forget()
        if not core.is_running and core.has_work and not core.begin():
            core.rest()
        self._publish(news)
        if core.is_running:
            core.look_ahead()

    def _forget(self) -> None:
        """Do what was asked to be forgotten. Not while a step runs: what it computes would be found after."""
        for client, message in self._to_forget:
            self._forgotten.append((client, self._core.answers.forget(message)))
        self._to_forget.clear()

    def _patience_ms(self) -> int:
        """How long to wait for messages when there are none."""
        if self._core.is_running:
            return 0 if self._core.is_step_done else _STEP_POLL_MS
        if self._core.has_work:
            return 0
        return _MOVING_POLL_MS if self._core.is_moving or self._preparing else _IDLE_POLL_MS

    def _receive(self, timeout_ms: int) -> None:
        """Handle every message that is there; wait for the first one."""
        self._poller.poll(timeout_ms)
        if self._wake is not None:
            self._wake.drain()
        with contextlib.suppress(zmq.Again):
            while True:
                client, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                try:
                    message = self._decoder.decode(b"".join(frames))
                except msgspec.MsgspecError as error:
                    print(f"stemma: the engine was sent what it cannot read: {error}", file=sys.stderr)
                    continue
                self._handle(client, message)

    def _handle(self, client: bytes, message: ToEngine) -> None:
        match message:
            case Hello():
                self._send(client, Ready(self._core.info))
            case Submit() if message.sampling.grammar is not None:
                self._prepare(client, message)
            case Submit():
                self._submit(client, message)
            case Abort():
                self._core.abort(message)
                if message.choice is None:
                    self._owners.pop(message.request_id, None)
                    left = self._preparing.pop(message.request_id, None)
                    if left is not None:
                        left.compiling.cancel()  # unless it has begun
            case GetStats():
                self._send(client, Stats(message.ticket, self._core.stats()))
            case GetProgress():
                num_tokens = self._core.scheduler.progress(message.request_id)
                self._send(client, Progress(message.ticket, num_tokens))
            case Watch():
                self._watch(client, message.is_on)
            case _:
                self._answer(client, message)

    def _prepare(self, client: bytes, message: Submit) -> None:
        """Compile a request's grammar beside everything else; then it is submitted."""
        if message.request_id in self._preparing:
            self._send(client, Refused(message.request_id, "a request of this id waits already", "refused"))
            return
        compiling = self._core.prepare(message)
        if compiling is None:
            self._submit(client, message)
            return
        self._preparing[message.request_id] = _Preparation(client, message, compiling)

    def _submit_prepared(self) -> None:
        done = [each for each in self._preparing.values() if each.compiling.done()]
        for each in done:
            del self._preparing[each.message.request_id]
            self._submit(each.client, each.message)  # which refuses what could not be compiled

    def _submit(self, client: bytes, message: Submit) -> None:
        answer = self._core.submit(message)
        if isinstance(answer, Accepted):
            self._owners[message.request_id] = _Owner(client, message.num_choices)
        self._send(client, answer)

    def _answer(self, client: bytes, message: CacheMessage) -> None:
        """What is asked of the cache: answered at once, or by an errand."""
        answers, now = self._core.answers, self._core.now
        match message:
            case Locate():
                self._send(client, answers.locate(message))
            case Park():
                self._errands.append((client, answers.park(message, now)))
            case Prefetch():
                self._errands.append((client, answers.prefetch(message, now)))
            case Forget():
                self._to_forget.append((client, message))
            case Pin():
                self._send(client, answers.pin(message, now))
            case Unpin():
                self._send(client, answers.unpin(message))
            case ListNodes():
                self._send(client, answers.list_nodes(message, now))
            case Settle():
                self._settlers.append((client, message.ticket))

    def _run_errands(self) -> None:
        done = [item for item in self._errands if item[1].movement.is_done]
        for client, errand in done:
            self._send(client, self._core.answers.moved(errand, self._core.now))
        if done:
            self._errands = [item for item in self._errands if not item[1].movement.is_done]
        if self._forgotten and not self._core.is_erasing:
            for client, forgotten in self._forgotten:
                self._send(client, forgotten)
            self._forgotten.clear()
        if self._settlers and not self._core.is_moving:
            for client, ticket in self._settlers:
                self._send(client, Settled(ticket=ticket))
            self._settlers.clear()

    def _watch(self, client: bytes, is_on: bool) -> None:
        if is_on:
            self._watchers.add(client)
        else:
            self._watchers.discard(client)
        self._core.answers.watch(bool(self._watchers))

    def _tell_watchers(self) -> None:
        if not self._watchers:
            return
        events = self._core.answers.events()
        if events is not None:
            for client in self._watchers:
                self._send(client, events)

    def _publish(self, messages: list[FromEngine]) -> None:
        for message in messages:
            match message:
                case TokenEvents():
                    self._publish_events(message)
                case Refused():
                    owner = self._owners.pop(message.request_id, None)
                    if owner is not None:
                        self._send(owner.client, message)

    def _publish_events(self, message: TokenEvents) -> None:
        """One frame a client and step, however many sequences it serves."""
        by_client: dict[bytes, TokenEvents] = {}
        for event in message.events:
            owner = self._owners.get(event.request_id)
            if owner is None:
                continue
            by_client.setdefault(owner.client, TokenEvents([])).events.append(event)
            if event.finish_reason is not None:
                self._end_choice(event.request_id, owner)
        for client, events in by_client.items():
            self._send(client, events)

    def _end_choice(self, request_id: str, owner: _Owner) -> None:
        """Forget who asked once every choice has had its end: clients abort only what has not."""
        owner.num_open -= 1
        if not owner.num_open:
            del self._owners[request_id]

    def _send(self, client: bytes, message: FromEngine) -> None:
        self._socket.send_multipart([client, self._encoder.encode(message)])
