"""A server that says, byte for byte, what a test scripts: on a real port, in a thread."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CLOSE", "Asked", "StubServer", "answer", "chunked", "event", "stub_server"]

CLOSE = b""  # in place of a piece: end the connection
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    number: int  # from 0
    connection: int  # from 0
    head: str
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


Script = Callable[[Asked], Iterable[bytes]]


@dataclass(slots=True, eq=False)
class StubServer:
    """Where it listens, and what it was asked."""

    script: Script
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    port: int = 0
    handlers: dict["asyncio.Task[None]", asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self.num_connections
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.handlers[task] = writer
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
                asked = Asked(len(self.asked), connection, head, await reader.readexactly(length))
                self.asked.append(asked)
                for piece in self.script(asked):
                    if piece == CLOSE:
                        return
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            writer.close()


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(content: str | None, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}], usage=None)


def usage(completion: int, prompt: int = 10, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    told = {"completion_tokens": completion, "prompt_tokens": prompt, "prompt_tokens_details": details}
    return event(choices=[], usage=told)


def chunked(*pieces: bytes) -> list[bytes]:
    """A whole response: its head, and a chunk a piece."""
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


def answer(*words: str, cached: int | None = None) -> list[bytes]:
    """A whole answer of an ordinary server, one event a word."""
    events = [text("", None), *map(text, words), text(None, "length")]
    return chunked(*events, usage(len(words), cached=cached), b"data: [DONE]\n\n")


@contextmanager
def stub_server(script: Script) -> Iterator[StubServer]:
    """Serve until the block ends."""
    stub = StubServer(script)
    loop, is_up = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(stub.handle, "127.0.0.1", 0)
        stub.port = server.sockets[0].getsockname()[1]
        is_up.set()
        await stop.wait()
        server.close()
        for writer in stub.handlers.values():
            writer.transport.abort()
        await asyncio.gather(*stub.handlers)
        await server.wait_closed()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert is_up.wait(10), "the stub did not start"
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)
        assert not thread.is_alive(), "the stub did not stop"
