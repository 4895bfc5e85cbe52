"""A generation as one answer, for clients that do not stream.

While the answer grows the connection is watched; when the client leaves, the work is cancelled, which
aborts the request.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway.choice import Choice
from gateway.errors import ClientGone
from gateway.generation import Generation
from gateway.wire.chat_response import ChatChoice, ChatCompletion, ChatMessage, ChoiceLogprobs, LogprobEntry

__all__ = ["whole_answer"]

T = TypeVar("T")


async def whole_answer(request: Request, generation: Generation, *, with_logprobs: bool) -> Response:
    """Collect the answer. Raises what the engine raises, what storing a turn raises, and ClientGone."""
    completion = await _unless_gone(request, _collect(generation, with_logprobs=with_logprobs))
    return Response(msgspec.json.encode(completion), media_type="application/json")


async def _collect(generation: Generation, *, with_logprobs: bool) -> ChatCompletion:
    entries: list[list[LogprobEntry]] = [[] for _ in generation.choices]
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                entries[piece.index].extend(piece.logprobs)
    except Exception:
        generation.record.outcome = "failed"
        raise
    catalog = generation.services.catalog
    return ChatCompletion(
        id=generation.submit.request_id,
        created=generation.created,
        model=catalog.name,
        choices=[
            _chat_choice(choice, told if with_logprobs else None)
            for choice, told in zip(generation.choices, entries, strict=True)
        ],
        usage=generation.usage,
        system_fingerprint=catalog.system_fingerprint,
        cache=UNSET if generation.cache is None else generation.cache,
    )


def _chat_choice(choice: Choice, entries: list[LogprobEntry] | None) -> ChatChoice:
    assert choice.finish_reason is not None, "the generation has ended"
    return ChatChoice(
        index=choice.index,
        message=ChatMessage(choice.text),
        logprobs=None if entries is None else ChoiceLogprobs(entries),
        finish_reason=choice.finish_reason,
    )


async def _unless_gone(request: Request, work: Coroutine[None, None, T]) -> T:
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone("The client closed the connection.")
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
