"""One request for text on its way through the engine: its prompts, started together and told as one stream.

It submits, feeds each prompt's generation, ends a choice at a stop string, and keeps the request's record.
Whoever starts a reply closes it, which aborts what still runs. The last piece comes only when what must be
kept of the answer is stored.
"""

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, UnsetType

from engine.cache_messages import CacheReport
from engine.client import Events
from engine.errors import EngineDied, GrammarRefused
from engine.messages import Submit, TokenEvent
from gateway.choice import Choice, Piece
from gateway.errors import InvalidRequest
from gateway.generation import Generation
from gateway.record import RequestRecord
from gateway.services import Services
from gateway.sessions.turn import Turn
from gateway.wire.cache_answers import NOTHING, CacheExplanation, CacheTold
from gateway.wire.cache_diagnostics import Diagnostics
from gateway.wire.chat_form import answer_message
from gateway.wire.prompt_cache import Ttl
from gateway.wire.usage import CompletionTokensDetails, PromptProgress, PromptTokensDetails, Usage
from gateway.written import num_left, num_new, with_beginning, writes_by_ttl

__all__ = ["CacheWork", "Explain", "Reply"]

_MAX_TOGETHER = 32  # events of one reply: who waits behind them should not wait long

Explain = Callable[[CacheReport], Awaitable[CacheExplanation]]


class CacheWork(Protocol):
    """What a reply does for the cache when its answers have ended."""

    @property
    @abstractmethod
    def keeps(self) -> bool:
        """Whether something is to be kept for a time."""

    @property
    @abstractmethod
    def compares(self) -> bool:
        """Whether the client wants a comparison."""

    @abstractmethod
    async def keep(self) -> Mapping[Ttl, int]:
        """Keep what is to be kept; says how many tokens of the prompts are."""

    @abstractmethod
    def compared(self) -> Diagnostics:
        """What became of an earlier request's prompt in this one."""

    @abstractmethod
    def remember(self) -> None:
        """Let later requests be compared with this one."""


@dataclass(slots=True, eq=False, kw_only=True)
class Reply:
    """The generations of one request, in the order of its prompts, and what they cost."""

    services: Services
    record: RequestRecord
    completion_id: str
    generations: list[Generation]
    created: int  # seconds since 1970
    remember: Callable[[Choice], object] = lambda _: None  # told of every finished choice
    turn: Turn | None = None  # of the session that the answer belongs to
    explain: Explain | None = None  # given when the client wants to be told
    cache_work: CacheWork | None = None
    held_by: str | None = None  # the field by which its answers are held to a grammar
    ahead: Submit | None = None  # computes the beginning of the prompt that is kept, if the rest is not
    cache: CacheTold = NOTHING  # what the client is told; there with the last piece
    is_told: bool = False  # whether the last piece is
    _events: Events | None = None
    _ahead_report: CacheReport | None = None
    _kept: Mapping[Ttl, int] | None = None  # tokens that are kept for a time
    _by_id: dict[str, Generation] = field(default_factory=dict)  # of requests
    _last_tokens: dict[tuple[str, int], float] = field(default_factory=dict)

    async def start(self) -> None:
        """Submit, and wait until all is accepted: only then is there something to stream. Raises EngineError,
        and then nothing runs.
        """
        submits = [generation.submit for generation in self.generations]
        if self.ahead is not None:
            submits.insert(0, self.ahead)
        self._by_id = {generation.submit.request_id: generation for generation in self.generations}
        with self._naming_the_field():
            self._events = await self.services.engine.start(submits)
        self.record.completion_id = self.completion_id
        self.record.outcome = "aborted"  # unless it comes to its end

    def close(self) -> None:
        """Abort what still runs, and end the session's turn unless it is stored. Does no harm at any time."""
        if self._events is None:
            return
        self._events.close()
        # the engine was told to abort what still ran, so what is forgotten now is not held any more
        if self.turn is not None:
            first = self.generations[0]
            self.turn.abandon(first.prompt_ids, first.choices[0].token_ids)

    async def news(self) -> AsyncGenerator[list[Piece]]:
        """The pieces of every choice as they come: those that are there at once come together, in order.
        Raises what the engine raises, and what storing the turn raises.
        """
        events = self._events
        assert events is not None, "the reply has been started"
        with self._naming_the_field():
            async for event in events:
                told: list[Piece] = []
                for each in (event, *events.arrived(_MAX_TOGETHER - 1)):
                    pieces = self._take(each)
                    if pieces and pieces[-1].finish_reason is not None and self._is_over:
                        if told and self._must_settle:
                            yield told  # storing takes time, and nothing of this waits for it
                            told = []
                        await self._settle()
                        self.is_told = True
                        yield told + pieces
                        return
                    told += pieces
                yield told
        raise EngineDied("the engine left a choice without an end")

    @contextmanager
    def _naming_the_field(self) -> Iterator[None]:
        try:
            yield
        except GrammarRefused as error:
            raise InvalidRequest(
                f"{self.held_by}: {error}", param=self.held_by, code="request_refused"
            ) from None

    async def progress(self) -> PromptProgress | None:
        """How far the prompts are; None once an answer grows. Raises EngineError."""
        if self.record.first_token is not None:
            return None
        engine = self.services.engine
        num_computed = [await engine.progress(each.submit.request_id) for each in self.generations]
        if self.ahead is not None:
            num_computed[0] = max(num_computed[0], await engine.progress(self.ahead.request_id))
        return PromptProgress(
            prompt_tokens=sum(len(each.prompt_ids) for each in self.generations),
            computed=sum(num_computed),
        )

    @property
    def usage(self) -> Usage:
        """What was used so far: every prompt once, every token that was drawn."""
        num_prompt_tokens = sum(len(each.prompt_ids) for each in self.generations)
        num_completion_tokens = sum(each.num_drawn for each in self.generations)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_completion_tokens,
            total_tokens=num_prompt_tokens + num_completion_tokens,
            prompt_tokens_details=self._prompt_details(),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(each.num_reasoning_tokens for each in self.generations)
            ),
        )

    def _prompt_details(self) -> PromptTokensDetails:
        num_cached = start = self.record.cached_tokens
        if self.ahead is None:
            num_written = sum(
                num_left(each.submit, each.num_cached_tokens, each.cache) for each in self.generations
            )
        else:
            num_written = num_new(self._ahead_report)
            start = len(self.ahead.prompt) // 4 - num_written
        by_ttl = UNSET if self._kept is None else writes_by_ttl(self._kept, start, start + num_written)
        return PromptTokensDetails(
            cached_tokens=num_cached, cache_write_tokens=num_written, cache_write_tokens_details=by_ttl
        )

    @property
    def _is_over(self) -> bool:
        return all(each.is_finished for each in self.generations)

    @property
    def _must_settle(self) -> bool:
        work = self.cache_work
        keeps = work is not None and (work.keeps or work.compares)
        return keeps or self.turn is not None or self.explain is not None

    def _take(self, event: TokenEvent) -> list[Piece]:
        """Feed one event to its generation. Mutates."""
        if self.ahead is not None and event.request_id == self.ahead.request_id:
            self._ahead_report = event.cache or self._ahead_report
            return []
        if self.ahead is not None and self._ahead_report is not None:
            event = with_beginning(event, self._ahead_report, len(self.ahead.prompt) // 4)
        generation = self._by_id[event.request_id]
        if generation.choices[event.choice].is_finished:
            return []  # drawn before the abort arrived
        self._note(event, generation)
        pieces = generation.push(event)
        for piece in pieces:
            if piece.finish_reason is not None:
                self._finish(generation, piece.index - generation.choices[0].index)
        return pieces

    async def _settle(self) -> None:
        """Do what must be done before the client hears of the end."""
        explanation: CacheExplanation | UnsetType = UNSET
        diagnostics: Diagnostics | UnsetType = UNSET
        if self.explain is not None and self.record.cache is not None:
            explanation = await self.explain(self.record.cache)
        if (work := self.cache_work) is not None:
            diagnostics = work.compared() if work.compares else UNSET
            work.remember()
            self._kept = await work.keep() if work.keeps else None
        self.cache = CacheTold(explanation, diagnostics)
        if self.turn is not None:
            (generation,) = self.generations
            (answer,) = generation.choices
            await self.turn.finish(generation.prompt_ids, answer_message(answer), answer.token_ids)

    def _note(self, event: TokenEvent, generation: Generation) -> None:
        if event.cache is not None and event.choice == 0 and generation is self.generations[0]:
            self.record.cache = event.cache
        self.record.cached_tokens += event.num_cached_tokens - generation.num_cached_tokens
        generation.num_cached_tokens = event.num_cached_tokens
        if not event.token_ids and event.finish_reason is None:
            return
        now = time.monotonic()
        if self.record.first_token is None:
            self.record.first_token = now
        if not event.token_ids:
            return
        self.record.completion_tokens += len(event.token_ids)
        key = event.request_id, event.choice
        before = self._last_tokens.get(key)
        if before is not None:
            self.services.metrics.inter_token.observe((now - before) / len(event.token_ids))
        self._last_tokens[key] = now

    def _finish(self, generation: Generation, place: int) -> None:
        """Mutates the record, before the last piece is told: whoever reads it may stop there."""
        choice = generation.choices[place]
        assert choice.finish_reason is not None, "a choice ends with a reason"
        self.services.metrics.choices.labels(choice.finish_reason).inc()
        if choice.index == 0:
            self.record.finish_reason = choice.finish_reason
        if choice.hit_stop_string:
            self.services.engine.abort(generation.submit.request_id, place)
        # an answer whose text was cut is told apart there: its ids say more than was sent
        self.remember(choice)
        if all(each.is_finished for each in self.generations):
            self.record.outcome = "completed"
            self.record.completion_tokens = self.usage.completion_tokens
