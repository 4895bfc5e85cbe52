"""An engine that computes nothing, in a process of its own: what a gateway costs is seen beside it.

It speaks the engine's messages on a real socket. Every step tells the next token of every request that runs:
the ids of one text, over and over. A request for `HELD_TOKENS` or more hears its first token and no other.

    python -m benchmarks.alone.engine ADDRESS < PLAN     (one line of JSON; ends with its standard input)
"""

import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from engine.messages import (
    Abort,
    Accepted,
    EngineInfo,
    FromEngine,
    Hello,
    Ready,
    Submit,
    ToEngine,
    TokenEvent,
    TokenEvents,
)

__all__ = ["HELD_TOKENS", "InstantEngine", "Plan"]

HELD_TOKENS = 4096
_CONTEXT = 8192


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What it says, and how fast."""

    token_ids: list[int]
    vocab_size: int
    step_seconds: float  # between the beginnings of two steps; 0: as fast as it can


@dataclass(slots=True, eq=False)
class _Running:
    request_id: str
    num_wanted: int
    num_told: int = 0


class InstantEngine:
    """Answers one client."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._running: dict[str, _Running] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step would tell anything."""
        return bool(self._running)

    def take(self, message: ToEngine) -> FromEngine | None:
        """Handle a message; answers at once, if at all."""
        match message:
            case Hello():
                return Ready(self._info())
            case Submit():
                wanted = _Running(message.request_id, message.sampling.max_tokens)
                self._running[message.request_id] = wanted
                return Accepted(message.request_id)
            case Abort():
                self._running.pop(message.request_id, None)
        return None

    def step(self) -> TokenEvents:
        """The next token of every request. Mutates: who has heard all is forgotten."""
        events = [self._next(each) for each in self._running.values()]
        self._running = {
            each.request_id: each
            for each in self._running.values()
            if each.num_told < each.num_wanted < HELD_TOKENS
        }
        return TokenEvents(events)

    def _next(self, each: _Running) -> TokenEvent:
        token_ids = self._plan.token_ids
        token_id = token_ids[each.num_told % len(token_ids)]
        each.num_told += 1
        return TokenEvent(
            request_id=each.request_id,
            choice=0,
            token_ids=[token_id],
            finish_reason="length" if each.num_told == each.num_wanted else None,
        )

    def _info(self) -> EngineInfo:
        return EngineInfo(
            context_length=_CONTEXT,
            vocab_size=self._plan.vocab_size,
            block_size=16,
            num_blocks=_CONTEXT,
            kv_bytes=0,
            device="none",
            dtype="float32",
        )


def _serve(plan: Plan, socket: "zmq.Socket[bytes]") -> None:
    engine = InstantEngine(plan)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ToEngine)
    client, next_step = b"", 0.0

    def send(message: FromEngine) -> None:
        socket.send_multipart([client, encoder.encode(message)])

    while True:
        wait = next_step - time.monotonic()
        socket.poll(None if not engine.has_work else max(0, int(wait * 1000)))
        with contextlib.suppress(zmq.Again):
            while True:
                client, frame = socket.recv_multipart(zmq.NOBLOCK)
                answer = engine.take(decoder.decode(frame))
                if answer is not None:
                    send(answer)
        now = time.monotonic()
        if engine.has_work and now >= next_step:
            next_step = max(next_step, now - plan.step_seconds) + plan.step_seconds
            send(engine.step())


def main() -> None:
    """Serve until standard input closes."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what its queue cannot hold
    socket.bind(sys.argv[1])
    _serve(plan, socket)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
