"""What a scripted engine says of requests that were started together."""

import asyncio
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from engine.errors import EngineStopping
from engine.messages import FinishReason, Submit, TokenEvent, TokenLogprob

__all__ = ["Script", "ScriptedEvents"]


@dataclass(slots=True)
class Script:
    """What one choice says, a token a step, and how it ends."""

    token_ids: Sequence[int]
    finish_reason: FinishReason = "stop"
    fail_after: int | None = None  # tokens; then `failure` is raised
    stall_after: int | None = None  # tokens; then nothing more comes


class ScriptedEvents:
    """Implements `engine.client.Events`. One step tells the next token of every choice that still speaks; a
    beam search tells all at once. Log-probabilities of a prompt come one a step, the last with its answer.
    """

    def __init__(self, engine: Any, submits: Sequence[Submit]) -> None:
        self._engine = engine
        self._scripts: dict[tuple[str, int], Script] = {}
        for submit in submits:
            for choice in range(submit.num_choices):
                place = min(len(self._scripts), len(engine.scripts) - 1)
                self._scripts[submit.request_id, choice] = engine.scripts[place]
        self._submits = {submit.request_id: submit for submit in submits}
        self._steps = dict.fromkeys(self._scripts, 0)  # of choices that still speak: tokens told
        self._untold = {submit.request_id: list(self._prompt_logprobs(submit)) for submit in submits}
        self._ready: deque[tuple[str, int]] = deque()
        engine.num_running += len(self._scripts)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent:
        try:
            while self._steps:
                if not self._ready:
                    await asyncio.sleep(self._engine.step_seconds)
                    self._ready += self._steps
                event = await self._next(*self._ready.popleft())
                if event is not None:
                    return event
        except BaseException:
            self.close()
            raise
        raise StopAsyncIteration

    def arrived(self, most: int) -> list[TokenEvent]:
        """None: a step tells one event after the other."""
        return []

    def close(self) -> None:
        """What still speaks is aborted."""
        for key in list(self._steps):
            self._end(key, aborted=True)

    async def _next(self, request_id: str, choice: int) -> TokenEvent | None:
        key = request_id, choice
        untold = self._untold[request_id]
        if len(untold) > 1:
            return self._news(key, prompt_logprobs=[untold.pop(0)]) if choice == 0 else None
        # an abort arrives late: the step that runs still speaks
        is_aborted = key in self._engine.aborts
        event = await self._drawn(key)
        self._steps[key] += 1
        if is_aborted or event.finish_reason is not None:
            self._end(key, aborted=is_aborted)
        return event

    async def _drawn(self, key: tuple[str, int]) -> TokenEvent:
        engine, script, step = self._engine, self._scripts[key], self._steps[key]
        if step == script.stall_after:
            await engine.wait_until_closed()
            raise EngineStopping("closed")
        if step == script.fail_after:
            raise engine.failure
        sampling = self._submits[key[0]].sampling
        end = min(len(script.token_ids), sampling.max_tokens) if sampling.beam else step + 1
        token_ids = list(script.token_ids[step : min(end, sampling.max_tokens)])
        is_over = step + 1 > len(script.token_ids) or (
            end >= len(script.token_ids) and (script.finish_reason == "length" or bool(sampling.beam))
        )
        is_cut = end >= sampling.max_tokens
        untold = self._untold[key[0]]
        return self._news(
            key,
            token_ids=token_ids,
            logprobs=None
            if sampling.logprobs is None
            else [self._logprob(each, sampling.logprobs) for each in token_ids],
            finish_reason=script.finish_reason
            if is_over and sampling.max_tokens
            else ("length" if is_cut else None),
            prompt_logprobs=[untold.pop()] if untold and key[1] == 0 else None,
        )

    def _news(self, key: tuple[str, int], **fields: Any) -> TokenEvent:
        return TokenEvent(
            request_id=key[0],
            choice=key[1],
            num_cached_tokens=self._engine.num_cached_tokens,
            cache=self._engine.report if self._steps[key] == 0 else None,
            **{"token_ids": [], **fields},
        )

    def _end(self, key: tuple[str, int], *, aborted: bool) -> None:
        del self._steps[key]
        self._engine.num_running -= 1
        self._engine.num_aborted += aborted

    def _prompt_logprobs(self, submit: Submit) -> list[TokenLogprob]:
        num_top = submit.sampling.prompt_logprobs
        ids = array("i", submit.prompt).tolist()[1:]
        return [] if num_top is None else [self._logprob(each, num_top) for each in ids]

    def _logprob(self, token_id: int, num_top: int) -> TokenLogprob:
        logprob = self._engine.logprobs.get(token_id, self._engine.logprob)
        return TokenLogprob(logprob, [(token_id + place, logprob - place) for place in range(num_top)])
