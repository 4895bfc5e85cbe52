"""One request for text on its way through the engine.

It runs the engine's generator, feeds each choice, ends a choice at a stop string, remembers finished
answers for the next turn, and keeps the request's record. Closing `pieces` closes the engine's generator,
which aborts what still runs. The last piece comes only when what must be kept of the answer is stored.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.cache_messages import CacheReport
from engine.errors import EngineDied
from engine.messages import Submit, TokenEvent
from gateway.choice import Choice, Piece
from gateway.conversation.prompt import Prompt
from gateway.record import RequestRecord
from gateway.services import Services
from gateway.sessions.turn import Turn
from gateway.wire.cache_answers import CacheExplanation
from gateway.wire.chat_response import PromptTokensDetails, Usage

__all__ = ["Explain", "Generation"]

Explain = Callable[[CacheReport], Awaitable[CacheExplanation]]


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """The choices of one request, and what they cost."""

    services: Services
    submit: Submit
    prompt: Prompt
    record: RequestRecord
    choices: list[Choice]
    created: int  # seconds since 1970
    turn: Turn | None = None  # of the session that the answer belongs to
    explain: Explain | None = None  # given when the client wants to be told
    cache: CacheExplanation | None = None  # what it is told; there with the last piece
    _last_tokens: dict[int, float] = field(default_factory=dict)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Every piece of every choice as it comes. Raises what the engine raises, and what storing the turn
        raises.
        """
        self.record.outcome = "aborted"  # unless it comes to its end
        try:
            async with aclosing(self.services.engine.generate(self.submit)) as events:
                async for event in events:
                    choice = self.choices[event.choice]
                    if choice.is_finished:
                        continue  # drawn before the abort arrived
                    self._note(event)
                    piece = choice.push(event)
                    if choice.is_finished:
                        self._finish(choice)
                    is_last = all(each.is_finished for each in self.choices)
                    if is_last:
                        await self._settle()
                    yield piece
                    if is_last:
                        break
                else:
                    raise EngineDied("the engine left a choice without an end")
        finally:
            # the engine was told to abort what still ran, so what is forgotten now is not held any more
            if self.turn is not None:
                self.turn.abandon(self.prompt.ids, self.choices[0].token_ids)

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        num_prompt_tokens = len(self.prompt.ids)
        num_completion_tokens = sum(len(choice.token_ids) for choice in self.choices)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_completion_tokens,
            total_tokens=num_prompt_tokens + num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(self.record.cached_tokens),
        )

    async def _settle(self) -> None:
        """Do what must be done before the client hears of the end."""
        if self.explain is not None and self.record.cache is not None:
            self.cache = await self.explain(self.record.cache)
        if self.turn is not None:
            (answer,) = self.choices
            await self.turn.finish(self.prompt.ids, answer.text, answer.token_ids)

    def _note(self, event: TokenEvent) -> None:
        now = time.monotonic()
        if event.cache is not None and event.choice == 0:
            self.record.cache = event.cache
        self.record.cached_tokens = event.num_cached_tokens
        if self.record.first_token is None:
            self.record.first_token = now
        if not event.token_ids:
            return
        self.record.completion_tokens += len(event.token_ids)
        before = self._last_tokens.get(event.choice)
        if before is not None:
            self.services.metrics.inter_token.observe((now - before) / len(event.token_ids))
        self._last_tokens[event.choice] = now

    def _finish(self, choice: Choice) -> None:
        """Mutates the record, before the last piece is told: whoever reads it may stop there."""
        assert choice.finish_reason is not None, "a choice ends with a reason"
        self.services.metrics.choices.labels(choice.finish_reason).inc()
        if choice.index == 0:
            self.record.finish_reason = choice.finish_reason
        if choice.hit_stop_string:
            self.services.engine.abort(self.submit.request_id, choice.index)
        # an answer whose text was cut is told apart there: its ids say more than was sent
        self.services.prompts.record(self.prompt, choice.text, choice.token_ids)
        if all(each.is_finished for each in self.choices):
            self.record.outcome = "completed"
            self.record.completion_tokens = self.usage.completion_tokens
