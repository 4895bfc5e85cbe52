"""One answer as it grows: token ids in, text out, as much as may be told.

The same assembler serves streams and whole answers, so the joined pieces of a stream are the whole answer.
It holds back half characters and what may be the start of a stop string, and log-probabilities until text
goes out again. A stop string ends the answer at the token that completes it; later tokens do not count.
With a reader, reasoning and calls of tools are told apart from content, which alone is searched.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.messages import TokenEvent, TokenLogprob
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.stop import StopMatcher
from gateway.tools.said import TOKEN_SIGN, Reader, Said

__all__ = ["Call", "CallPiece", "Choice", "EndReason", "Piece", "ToldToken"]

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ToldToken:
    """A token with its log-probability. Its text begins at `offset`, in characters of all that is told of the
    choice.
    """

    token_id: int
    offset: int
    logprob: TokenLogprob | None  # None: nothing stands before it that it could follow


@dataclass(slots=True, eq=False)
class Call:
    """A call as far as it is read. Its arguments are the model's own words, which may be no JSON."""

    name: str
    id: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """News of a call: its beginning, or more of its arguments."""

    place: int  # among the calls of the answer
    arguments: str
    begins: Call | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one answer. Log-probabilities come with the first text that is told after their tokens."""

    index: int
    text: str  # content
    logprobs: Sequence[ToldToken] = ()
    finish_reason: EndReason | None = None
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()


class Choice:
    """One answer. Fed by its events until it is finished."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stops: StopMatcher,
        *,
        min_tokens: int,
        offset: int = 0,
        reader: Reader | None = None,
        spellings: Mapping[int, str] | None = None,
        is_empty: bool = False,
    ) -> None:
        """`offset` counts the characters that are told before it; `spellings` are of control tokens that the
        reader reads. An empty one is to have no token, and has stopped then.
        """
        self.index = index
        self.token_ids: list[int] = []
        self.text = ""  # content
        self.reasoning = ""
        self.calls: list[Call] = []
        self.num_reasoning_tokens = 0
        self.finish_reason: EndReason | None = None
        self.stop_token_id: int | None = None  # the token that ended it
        self.hit_stop_string = False
        self.cumulative_logprob = 0.0  # of its tokens, where the engine tells them
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._is_empty = is_empty
        self._num_characters = offset
        self._reader = reader
        self._spellings = spellings or {}
        self._drawn_text: list[str] = []  # of all tokens, kept where there is a reader
        self._parts: list[str] = []  # ready, not told yet
        self._thoughts: list[str] = []
        self._call_pieces: list[CallPiece] = []
        self._untold: list[ToldToken] = []

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be told."""
        return self.finish_reason is not None

    @property
    def mean_logprob(self) -> float:
        """The log-probability of a token of it; 0 for an empty answer."""
        return self.cumulative_logprob / max(1, len(self.token_ids))

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.matched

    @property
    def written(self) -> str:
        """What the model wrote: the content, and with a reader all that its tokens spell."""
        return self.text if self._reader is None else "".join(self._drawn_text)

    def push(self, event: TokenEvent) -> Piece:
        """Take the next event of this answer. Mutates; the piece may be empty."""
        for place, token_id in enumerate(event.token_ids):
            self._draw(token_id, None if event.logprobs is None else event.logprobs[place])
            if self.hit_stop_string:
                self.finish_reason = "tool_calls" if self.calls else "stop"
                return self._take()
        if event.finish_reason is not None:
            self._feed(self._detokenizer.flush())
            if self._reader is not None:
                self._hear(self._reader.finish(is_cut=event.finish_reason == "length"))
            self._parts.append(self._stops.flush())
            has_called = bool(self.calls) and event.finish_reason == "stop"
            self.finish_reason = "tool_calls" if has_called else event.finish_reason
            if self._is_empty:
                self.finish_reason = "stop"
            self.stop_token_id = event.stop_token_id
        return self._take()

    def _draw(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self.token_ids.append(token_id)
        if logprob is not None:
            self.cumulative_logprob += logprob.logprob
            self._untold.append(ToldToken(token_id, self._num_characters, logprob))
        text = self._detokenizer.push(token_id)
        self._num_characters += len(text)
        if self._reader is None:
            self._feed(text)
            return
        was_reasoning = self._reader.is_reasoning
        self._drawn_text.append(text)
        spelling = self._spellings.get(token_id)
        self._feed(text if spelling is None else TOKEN_SIGN + spelling)
        # marks of reasoning count as reasoning
        self.num_reasoning_tokens += was_reasoning or self._reader.is_reasoning

    def _feed(self, text: str) -> None:
        if self._reader is None:
            self._search(text)
        else:
            self._hear(self._reader.push(text))

    def _hear(self, said: Iterable[Said]) -> None:
        """Take what a reader says, up to a stop string."""
        for kind, spelled in said:
            if self.hit_stop_string:
                return
            text = spelled.replace(TOKEN_SIGN, "")
            if kind == "content":
                self._search(text)
            elif kind == "reasoning":
                self._thoughts.append(text)
            elif kind == "call":
                self.calls.append(Call(text, f"call_{secrets.token_hex(12)}"))
                self._call_pieces.append(CallPiece(len(self.calls) - 1, "", self.calls[-1]))
            else:
                self.calls[-1].arguments += text
                self._call_pieces.append(CallPiece(len(self.calls) - 1, text))

    def _search(self, text: str) -> None:
        if len(self.token_ids) <= self._min_tokens:
            # below min_tokens nothing may end the answer, so its text is not searched
            self._parts.append(text)
            return
        ready, self.hit_stop_string = self._stops.push(text)
        self._parts.append(ready)

    def _take(self) -> Piece:
        text = "".join(self._parts)
        self._parts.clear()
        self.text += text
        reasoning = "".join(self._thoughts)
        self._thoughts.clear()
        self.reasoning += reasoning
        calls, self._call_pieces = self._call_pieces, []
        told: list[ToldToken] = []
        if text or reasoning or calls or self.is_finished:
            told, self._untold = self._untold, told
        return Piece(self.index, text, told, self.finish_reason, reasoning, calls)
