"""A reply as one answer, for clients that do not stream.

While the answer grows the connection is watched; when the client leaves, the work is cancelled, which
aborts the request.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing, closing
from typing import TypeVar

import msgspec
from anyio import CancelScope
from starlette.requests import Request
from starlette.responses import Response

from gateway.choice import Choice
from gateway.errors import ClientGone
from gateway.generation import Generation
from gateway.reply import Reply
from gateway.wire.form import Form, Told
from gateway.wire.logprobs import PromptLogprobs, prompt_logprobs

__all__ = ["whole_answer"]

T = TypeVar("T")


async def whole_answer(
    request: Request, reply: Reply, form: Form, *, num_best: int | None = None, num_prompt_top: int | None
) -> Response:
    """Run a reply to its end. `num_best` is how many choices of each prompt are told, the likeliest first;
    None is all as they are. `num_prompt_top` is None when nobody asked for log-probabilities of prompts.

    Raises what the engine raises, what storing a turn raises, and ClientGone.
    """
    with closing(reply):
        told = await _unless_gone(request, _collect(reply))
    answers: list[Told] = []
    for generation in reply.generations:
        of_prompt = _prompt_logprobs(reply, generation, num_prompt_top)
        for choice in _best(generation, num_best):
            answer = told[choice.index]
            answer.index, answer.prompt_logprobs = len(answers), of_prompt
            answers.append(answer)
    whole = form.whole(answers, reply.usage, reply.cache)
    return Response(msgspec.json.encode(whole), media_type="application/json")


async def _collect(reply: Reply) -> dict[int, Told]:
    await reply.start()
    told = {choice.index: Told(choice.index) for each in reply.generations for choice in each.choices}
    try:
        async with aclosing(reply.news()) as news:
            async for pieces in news:
                for piece in pieces:
                    told[piece.index].add(piece)
    except Exception:
        reply.record.outcome = "failed"
        raise
    return told


def _best(generation: Generation, num_best: int | None) -> list[Choice]:
    choices = generation.choices
    if num_best is None or num_best == len(choices):
        return choices
    # sorted is stable: of equal ones the first drawn is told
    return sorted(choices, key=lambda choice: -choice.mean_logprob)[:num_best]


def _prompt_logprobs(reply: Reply, generation: Generation, num_top: int | None) -> PromptLogprobs | None:
    if num_top is None:
        return None
    spelling = reply.services.prompts.spelling
    return prompt_logprobs(spelling, generation.prompt_ids, generation.prompt_logprobs, num_top)


async def _unless_gone(request: Request, work: Coroutine[None, None, T]) -> T:
    with CancelScope() as scope:
        watcher = asyncio.ensure_future(_until_gone(request, scope))
        try:
            return await work
        finally:
            watcher.cancel()
    raise ClientGone("The client closed the connection.")


async def _until_gone(request: Request, scope: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
