"""Pieces of answers as the chunks of a chat stream, in the order that the protocol demands.

For each choice: one chunk with the role and empty content, then content, then one empty delta with the
reason why it ended. Content never rides on the last one, and no delta of content is empty.
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, UnsetType

from gateway.choice import Piece
from gateway.wire.cache_answers import CacheExplanation
from gateway.wire.chat_response import ChatChunk, ChoiceLogprobs, ChunkChoice, Delta, LogprobEntry, Usage

__all__ = ["ChunkWriter"]


class ChunkWriter:
    """Writes the chunks of one stream; remembers which choices have begun."""

    def __init__(
        self, *, completion_id: str, created: int, model: str, system_fingerprint: str, with_usage: bool
    ) -> None:
        self._id = completion_id
        self._created = created
        self._model = model
        self._fingerprint = system_fingerprint
        self._with_usage = with_usage
        self._begun: set[int] = set()

    def chunks(self, piece: Piece, cache: CacheExplanation | UnsetType = UNSET) -> Iterator[ChatChunk]:
        """The chunks that tell a piece: none, when it has nothing to say. `cache` is told with its end."""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield self._chunk(ChunkChoice(index=piece.index, delta=Delta(role="assistant", content="")))
        untold = _logprobs(piece.logprobs)
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
        """The last chunk of a stream whose client asked for usage."""
        return self._chunk(None, usage, cache)

    def _chunk(
        self,
        choice: ChunkChoice | None,
        usage: Usage | None = None,
        cache: CacheExplanation | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[] if choice is None else [choice],
            usage=usage if self._with_usage else UNSET,
            cache=cache,
        )


def _logprobs(entries: Sequence[LogprobEntry]) -> ChoiceLogprobs | None:
    return ChoiceLogprobs(list(entries)) if entries else None
