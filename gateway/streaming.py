"""A reply as server-sent events.

The first byte is sent only after validation and after the engine has accepted the request, so a bad request
is an ordinary 4xx and a full queue a 429. After it a failure is one `data:` event with an error object, and
the stream ends there: no finish_reason, no [DONE]. What the request holds is let go when the response has
ended, however it ended; that aborts what still runs.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec
from msgspec import UNSET

from engine.errors import EngineError
from gateway.errors import GatewayError, InternalError, error_body, from_engine
from gateway.events import EventResponse, Pace
from gateway.reply import Reply
from gateway.wire.form import Form

__all__ = ["event_stream"]

_ENCODER = msgspec.json.Encoder()
_DONE = b"data: [DONE]\n\n"


async def event_stream(
    reply: Reply, form: Form, *, with_usage: bool, pace: Pace, held: ExitStack
) -> EventResponse:
    """Start a reply, and answer with the response that streams it. It takes over `held`, and closes it when
    it has ended. Raises EngineError when the request is not accepted; `held` is the caller's then.
    """
    await reply.start()
    held.callback(reply.close)
    return EventResponse(_events(reply, form, with_usage=with_usage), pace, held.pop_all())


async def _events(reply: Reply, form: Form, *, with_usage: bool) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(reply.pieces()) as pieces:
            async for piece in pieces:
                cache = UNSET if with_usage or reply.cache is None else reply.cache
                for chunk in form.chunks(piece, cache):
                    yield _event(_ENCODER.encode(chunk))
    except EngineError as error:
        reply.record.outcome = "failed"
        yield _event(error_body(from_engine(error)))
        return
    except GatewayError as error:
        reply.record.outcome = "failed"
        yield _event(error_body(error))
        return
    except Exception:
        reply.record.outcome = "failed"
        yield _event(error_body(InternalError("Something failed inside the server.")))
        raise
    if with_usage:
        cache = UNSET if reply.cache is None else reply.cache
        yield _event(_ENCODER.encode(form.usage_chunk(reply.usage, cache)))
    yield _DONE


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
