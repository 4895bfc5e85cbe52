"""Answers of chat in the protocol's shapes, whole and as the chunks of a stream in the order that it wants.

For each choice: one chunk with the role and empty content, then content, then one empty delta with the
reason why it ended. Content never rides on the last one, and no delta of content is empty.
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from gateway.choice import Piece, ToldToken
from gateway.conversation.spelling import Spelling
from gateway.wire.cache_answers import CacheExplanation
from gateway.wire.chat_response import ChatChoice, ChatChunk, ChatCompletion, ChatMessage, ChunkChoice, Delta
from gateway.wire.form import Head, Told
from gateway.wire.logprobs import ChoiceLogprobs, chat_logprobs
from gateway.wire.usage import Usage

__all__ = ["ChatForm"]


class ChatForm:
    """Writes one answer; remembers which choices of its stream have begun. Implements wire.form.Form."""

    def __init__(self, head: Head, spelling: Spelling, *, num_top: int | None, with_usage: bool) -> None:
        """`num_top` is None when nobody asked for log-probabilities."""
        self._head = head
        self._spelling = spelling
        self._num_top = num_top
        self._with_usage = with_usage
        self._begun: set[int] = set()

    def chunks(self, piece: Piece, cache: CacheExplanation | UnsetType = UNSET) -> Iterator[ChatChunk]:
        """See Form."""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield self._chunk(ChunkChoice(index=piece.index, delta=Delta(role="assistant", content="")))
        untold = self._logprobs(piece.logprobs) if piece.logprobs else None
        if piece.text:
            yield self._chunk(
                ChunkChoice(index=piece.index, delta=Delta(content=piece.text), logprobs=untold)
            )
            untold = None
        if piece.finish_reason is not None:
            yield self._chunk(
                ChunkChoice(
                    index=piece.index, delta=Delta(), logprobs=untold, finish_reason=piece.finish_reason
                ),
                cache=cache,
            )

    def usage_chunk(self, usage: Usage, cache: CacheExplanation | UnsetType = UNSET) -> ChatChunk:
        """See Form."""
        return self._chunk(None, usage, cache)

    def whole(
        self, told: Sequence[Told], usage: Usage, cache: CacheExplanation | UnsetType = UNSET
    ) -> ChatCompletion:
        """See Form."""
        prompt_logprobs = told[0].prompt_logprobs
        return ChatCompletion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(each) for each in told],
            usage=usage,
            system_fingerprint=self._head.system_fingerprint,
            prompt_logprobs=UNSET if prompt_logprobs is None else prompt_logprobs,
            cache=cache,
        )

    def _choice(self, told: Told) -> ChatChoice:
        return ChatChoice(
            index=told.index,
            message=ChatMessage(told.text),
            logprobs=self._logprobs(told.tokens),
            finish_reason=told.end,
        )

    def _chunk(
        self,
        choice: ChunkChoice | None,
        usage: Usage | None = None,
        cache: CacheExplanation | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.system_fingerprint,
            choices=[] if choice is None else [choice],
            usage=usage if self._with_usage else UNSET,
            cache=cache,
        )

    def _logprobs(self, tokens: Sequence[ToldToken]) -> ChoiceLogprobs | None:
        return None if self._num_top is None else chat_logprobs(self._spelling, tokens, self._num_top)
