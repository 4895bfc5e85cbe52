"""A reply as server-sent events.

The first byte is sent only after validation and after the engine has accepted the request, so a bad request
is an ordinary 4xx and a full queue a 429. After it a failure is one `data:` event with an error object, and
the stream ends there: no finish_reason, no [DONE]. What the request holds is let go when the response has
ended, however it ended; that aborts what still runs.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec

from engine.errors import EngineError
from gateway.choice import Piece
from gateway.errors import GatewayError, InternalError, error_body, from_engine
from gateway.events import EventResponse, Pace
from gateway.reply import Reply
from gateway.wire.cache_answers import NOTHING, CacheTold
from gateway.wire.form import Form

__all__ = ["event_stream"]

_ENCODER = msgspec.json.Encoder()
_PROGRESS_SECONDS = 1.0
_DONE = b"data: [DONE]\n\n"
_MARK = "\0text\0"  # stands where a chunk's text will; no name of a model holds it


async def event_stream(
    reply: Reply, form: Form, *, with_usage: bool, pace: Pace, held: ExitStack
) -> EventResponse:
    """Start a reply, and answer with the response that streams it. It takes over `held`, and closes it when
    it has ended. Raises EngineError when the request is not accepted; `held` is the caller's then.
    """
    await reply.start()
    held.callback(reply.close)
    events = _events(reply, form, with_usage=with_usage)
    return EventResponse(events, pace, held.pop_all(), lambda: _progress(reply))


async def _progress(reply: Reply) -> str:
    """How far the prompt is; nothing once the answer grows, or when the engine does not say it soon."""
    try:
        async with asyncio.timeout(_PROGRESS_SECONDS):
            progress = await reply.progress()
    except (EngineError, TimeoutError):
        return ""
    return "" if progress is None else _ENCODER.encode(progress).decode()


async def _events(reply: Reply, form: Form, *, with_usage: bool) -> AsyncGenerator[bytes]:
    writer, written = _Writer(form), b""
    try:
        async with aclosing(reply.news()) as news:
            async for pieces in news:
                cache = NOTHING if with_usage else reply.cache
                written = b"".join([writer.written(piece, cache) for piece in pieces])
                if written and not reply.is_told:
                    yield written
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
        written += _event(_ENCODER.encode(form.usage_chunk(reply.usage, reply.cache)))
    yield written + _DONE


class _Writer:
    """Pieces as events. What stands around every text of a choice is the same, and put together once."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._around: dict[int, tuple[bytes, bytes]] = {}  # of choices that have begun

    def written(self, piece: Piece, cache: CacheTold) -> bytes:
        """All events that tell a piece; none, when it has nothing to say."""
        is_more = piece.logprobs or piece.reasoning or piece.calls or piece.finish_reason is not None
        is_plain = piece.text and not is_more
        if is_plain and (around := self._around.get(piece.index)) is not None:
            return around[0] + _ENCODER.encode(piece.text) + around[1]
        written = b"".join([_event(_ENCODER.encode(chunk)) for chunk in self._form.chunks(piece, cache)])
        if is_plain:
            self._around[piece.index] = self._find_around(piece.index)
        return written

    def _find_around(self, index: int) -> tuple[bytes, bytes]:
        (chunk,) = self._form.chunks(Piece(index, _MARK))
        before, _, after = _event(_ENCODER.encode(chunk)).rpartition(_ENCODER.encode(_MARK))
        return before, after


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
