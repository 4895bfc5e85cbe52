"""Answers of completions in the protocol's shape, whole and as the chunks of a stream.

For each choice: chunks of text, the prompt first where it is echoed, then one without text that says why it
ended. Log-probabilities of tokens without text ride on the last one; an echo's come where it does.
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from gateway.choice import Piece, ToldToken
from gateway.conversation.spelling import Spelling
from gateway.wire.cache_answers import NOTHING, CacheTold
from gateway.wire.completion_response import Completion, CompletionChoice
from gateway.wire.form import Head, Told
from gateway.wire.logprobs import CompletionLogprobs, completion_logprobs
from gateway.wire.usage import Usage

__all__ = ["CompletionForm"]


class CompletionForm:
    """Writes one answer. Implements wire.form.Form."""

    def __init__(self, head: Head, spelling: Spelling, *, num_top: int | None, with_usage: bool) -> None:
        """`num_top` is None when nobody asked for log-probabilities."""
        self._head = head
        self._spelling = spelling
        self._num_top = num_top
        self._with_usage = with_usage

    def chunks(self, piece: Piece, cache: CacheTold = NOTHING) -> Iterator[Completion]:
        """See Form."""
        untold = self._logprobs(piece.logprobs) if piece.logprobs else None
        if piece.text or (untold is not None and piece.finish_reason is None):  # an echo may have no text
            yield self._chunk(CompletionChoice(index=piece.index, text=piece.text, logprobs=untold))
            untold = None
        if piece.finish_reason is not None:
            yield self._chunk(
                CompletionChoice(
                    index=piece.index, text="", logprobs=untold, finish_reason=piece.finish_reason
                ),
                cache=cache,
            )

    def usage_chunk(self, usage: Usage, cache: CacheTold = NOTHING) -> Completion:
        """See Form."""
        return self._chunk(None, usage, cache)

    def whole(self, told: Sequence[Told], usage: Usage, cache: CacheTold = NOTHING) -> Completion:
        """See Form."""
        return self._completion([self._choice(each) for each in told], usage, cache)

    def _choice(self, told: Told) -> CompletionChoice:
        return CompletionChoice(
            index=told.index,
            text=told.text,
            logprobs=self._logprobs(told.tokens),
            finish_reason=told.end,
            prompt_logprobs=UNSET if told.prompt_logprobs is None else told.prompt_logprobs,
        )

    def _chunk(
        self,
        choice: CompletionChoice | None,
        usage: Usage | None = None,
        cache: CacheTold = NOTHING,
    ) -> Completion:
        choices = [] if choice is None else [choice]
        return self._completion(choices, usage if self._with_usage else UNSET, cache)

    def _completion(
        self,
        choices: list[CompletionChoice],
        usage: Usage | UnsetType | None,
        cache: CacheTold,
    ) -> Completion:
        return Completion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=usage,
            system_fingerprint=self._head.system_fingerprint,
            cache=cache.explanation,
            prompt_cache_diagnostics=cache.diagnostics,
        )

    def _logprobs(self, tokens: Sequence[ToldToken]) -> CompletionLogprobs | None:
        return None if self._num_top is None else completion_logprobs(self._spelling, tokens, self._num_top)
