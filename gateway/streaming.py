"""A generation as server-sent events.

The first byte is sent only after validation, so a bad request is an ordinary 4xx. After it a failure is one
`data:` event with an error object, and the stream ends there: no finish_reason, no [DONE]. When the client
leaves, the response closes the generator, which aborts the request. What the request holds (the session whose
turn it is) is let go when the response has ended, however it ended.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec
from msgspec import UNSET

from engine.errors import EngineError
from gateway.errors import GatewayError, InternalError, error_body, from_engine
from gateway.events import EventResponse, Pace
from gateway.generation import Generation
from gateway.wire.chunks import ChunkWriter

__all__ = ["event_stream"]

_ENCODER = msgspec.json.Encoder()
_DONE = b"data: [DONE]\n\n"


def event_stream(generation: Generation, *, with_usage: bool, pace: Pace, held: ExitStack) -> EventResponse:
    """The response that streams a generation. It closes `held` when it has ended."""
    return EventResponse(_events(generation, with_usage=with_usage), pace, held)


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
                cache = UNSET if with_usage or generation.cache is None else generation.cache
                for chunk in writer.chunks(piece, cache):
                    yield _event(_ENCODER.encode(chunk))
    except EngineError as error:
        generation.record.outcome = "failed"
        yield _event(error_body(from_engine(error)))
        return
    except GatewayError as error:
        generation.record.outcome = "failed"
        yield _event(error_body(error))
        return
    except Exception:
        generation.record.outcome = "failed"
        yield _event(error_body(InternalError("Something failed inside the server.")))
        raise
    if with_usage:
        cache = UNSET if generation.cache is None else generation.cache
        yield _event(_ENCODER.encode(writer.usage_chunk(generation.usage, cache)))
    yield _DONE


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
