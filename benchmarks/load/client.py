"""One streamed chat completion, from the bytes of its request to its times, counts and text."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from benchmarks.load.connections import Address, Connections
from benchmarks.load.event_reader import EventReader
from benchmarks.load.http_reader import BrokenResponse
from benchmarks.load.record import Failure

__all__ = ["Answer", "Client", "Server"]

_MAX_DETAIL = 300  # characters of a failure that are kept


@dataclass(frozen=True, slots=True)
class Server:
    """Who is asked, and how."""

    url: str  # of the API's root: http://host:port/v1
    model: str
    key: str = "none"
    extra: dict[str, Any] = field(default_factory=dict)  # more fields of each body
    ignores_eos: bool = True  # whether bodies say `ignore_eos`
    timeout: float = 1200.0  # seconds for a whole request

    def body(self, messages: list[dict[str, str]], num_answer: int) -> bytes:
        """The JSON of one request."""
        fields = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "max_tokens": num_answer,
            "temperature": 0,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignores_eos else {}),
            **self.extra,
        }
        return msgspec.json.encode(fields)


@dataclass(slots=True)
class Answer:
    """What came back. Times are of time.perf_counter()."""

    sent: float
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # of events that brought text
    pieces: list[str] = field(default_factory=list)  # of the content, without any reasoning
    num_tokens: int = 0
    tells_tokens: bool = False  # whether they are those of `usage`, and not one an event
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    failure: Failure | None = None

    @property
    def text(self) -> str:
        """The content."""
        return "".join(self.pieces)


class Client:
    """Asks one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connections = Connections(Address.parse(server.url), server.key)

    async def ask(self, messages: list[dict[str, str]], num_answer: int) -> Answer:
        """Send one request and read its stream to the end. What goes wrong is told in the answer."""
        body = self.server.body(messages, num_answer)
        reading = _Reading(Answer(time.perf_counter()))
        answer = reading.answer
        try:
            async with asyncio.timeout(self.server.timeout):
                status, answer.ended = await self._connections.post(body, reading.take)
        except TimeoutError:
            answer.failure = Failure("timeout", f"no whole answer after {self.server.timeout:g} s")
        except BrokenResponse as error:
            answer.failure = Failure("broken response", str(error))
        except OSError as error:
            answer.failure = Failure("no connection", str(error)[:_MAX_DETAIL])
        else:
            reading.finish(status)
        answer.ended = answer.ended or time.perf_counter()
        return answer

    def close(self) -> None:
        """Cut the connections."""
        self._connections.close()


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


_Count = Annotated[
    int, msgspec.Meta(ge=0, le=1 << 40)
]  # of tokens: what no server can mean is a broken event


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class _Reading:
    """Fills an answer from the bytes of its response."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._events = EventReader()
        self._start = bytearray()  # of the body: what is told of a response that is no stream
        self._has_events = False
        self._is_whole = False

    def take(self, status: int, body: bytes, now: float) -> None:
        """The next bytes of the body, and when they came."""
        self._start += body[: max(0, 4 * _MAX_DETAIL - len(self._start))]
        if status != 200:
            return
        for data in self._events.feed(body):
            self._take_event(data, now)

    def finish(self, status: int) -> None:
        """The response has ended: what is missing is a failure."""
        answer = self.answer
        for data in self._events.close():
            self._take_event(data, answer.ended)
        start = self._start.decode(errors="replace")
        if status != 200:
            self._fail(f"HTTP {status}", start)
        elif not self._has_events:
            self._fail("no event stream", start or "the body is empty")
        elif not self._is_whole:
            self._fail("cut short", f"the stream ended after {len(answer.arrivals)} events of text")
        elif not (answer.num_tokens or answer.arrivals):
            self._fail("empty answer", "the stream ended without a token")
        answer.tells_tokens = answer.num_tokens > 0
        answer.num_tokens = answer.num_tokens or len(answer.arrivals)

    def _take_event(self, data: bytes, now: float) -> None:
        self._has_events = True
        if data == b"[DONE]":
            self._is_whole = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            self._fail("unreadable event", f"{error}: {data[:_MAX_DETAIL]!r}")
            return
        if event.error is not None:
            self._fail("error in the stream", str(event.error))
        if event.usage is not None:
            self._take_usage(event.usage)
        for choice in event.choices or ():
            self._take_choice(choice, now)

    def _take_choice(self, choice: _Choice, now: float) -> None:
        if choice.finish_reason is not None:
            self._is_whole = True
        delta = choice.delta
        if delta is None:
            return
        if delta.content:
            self.answer.pieces.append(delta.content)
            self.answer.arrivals.append(now)
        elif delta.reasoning_content or delta.reasoning:
            self.answer.arrivals.append(now)

    def _take_usage(self, usage: _Usage) -> None:
        answer = self.answer
        answer.num_tokens = usage.completion_tokens or answer.num_tokens
        answer.num_prompt_tokens = usage.prompt_tokens or answer.num_prompt_tokens
        if usage.prompt_tokens_details is not None:
            answer.num_cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _fail(self, kind: str, detail: str) -> None:
        if self.answer.failure is None:
            self.answer.failure = Failure(kind, detail[:_MAX_DETAIL])
