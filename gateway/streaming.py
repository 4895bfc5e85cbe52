"""A generation as server-sent events.

The first byte is sent only after validation, so a bad request is an ordinary 4xx. After it a failure is one
`data:` event with an error object, and the stream ends there: no finish_reason, no [DONE]. When the client
leaves, the response closes the generator, which aborts the request.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

from engine.errors import EngineError
from gateway.errors import InternalError, error_body, from_engine
from gateway.generation import Generation
from gateway.wire.chunks import ChunkWriter

__all__ = ["event_stream"]

_ENCODER = msgspec.json.Encoder()
_DONE = b"data: [DONE]\n\n"


def event_stream(generation: Generation, *, with_usage: bool, ping_seconds: float) -> EventSourceResponse:
    """The response that streams a generation."""
    return EventSourceResponse(
        _events(generation, with_usage=with_usage),
        media_type="text/event-stream; charset=utf-8",
        headers={"cache-control": "no-cache, no-store"},
        # the library's own default, \r\n, is legal, but simple clients split at "\n\n"
        sep="\n",
        ping=ping_seconds,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
    )


async def _events(generation: Generation, *, with_usage: bool) -> AsyncGenerator[bytes]:
    catalog = generation.services.catalog
    writer = ChunkWriter(
        completion_id=generation.submit.request_id,
        created=generation.created,
        model=catalog.name,
        system_fingerprint=catalog.system_fingerprint,
        with_usage=with_usage,
    )
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                for chunk in writer.chunks(piece):
                    yield _event(_ENCODER.encode(chunk))
    except EngineError as error:
        generation.record.outcome = "failed"
        yield _event(error_body(from_engine(error)))
        return
    except Exception:
        generation.record.outcome = "failed"
        yield _event(error_body(InternalError("Something failed inside the server.")))
        raise
    if with_usage:
        yield _event(_ENCODER.encode(writer.usage_chunk(generation.usage)))
    yield _DONE


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
