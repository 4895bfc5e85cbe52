"""What the endpoints for text have in common on the wire: what is told of an answer, whole or in chunks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.choice import CallPiece, EndReason, Piece, ToldToken
from gateway.wire.cache_answers import NOTHING, CacheTold
from gateway.wire.logprobs import PromptLogprobs
from gateway.wire.usage import Usage

__all__ = ["FinishReason", "Form", "Head", "Told"]

FinishReason = EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is the same in every chunk of an answer."""

    id: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str


@dataclass(slots=True, eq=False)
class Told:
    """One choice as its pieces told it."""

    index: int
    text: str = ""
    tokens: list[ToldToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None  # when asked for

    def add(self, piece: Piece) -> None:
        """Mutates."""
        self.text += piece.text
        self.tokens += piece.logprobs
        self.finish_reason = piece.finish_reason
        self.reasoning += piece.reasoning
        self.calls += piece.calls

    @property
    def end(self) -> FinishReason:
        """Why it ended; only of what has ended."""
        assert self.finish_reason is not None, "the answer has ended"
        return self.finish_reason


class Form(Protocol):
    """The shapes of one endpoint's answers to one request."""

    def chunks(self, piece: Piece, cache: CacheTold = NOTHING) -> Iterator[msgspec.Struct]:
        """The chunks that tell a piece: none, when it has nothing to say. `cache` is told with its end."""
        ...

    def usage_chunk(self, usage: Usage, cache: CacheTold = NOTHING) -> msgspec.Struct:
        """The last chunk of a stream whose client asked for usage."""
        ...

    def whole(self, told: Sequence[Told], usage: Usage, cache: CacheTold = NOTHING) -> msgspec.Struct:
        """A whole answer."""
        ...
