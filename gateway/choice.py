"""One answer as it grows: token ids in, text out, as much as may be told.

The same assembler serves streams and whole answers, so the joined pieces of a stream are the whole answer.
It holds back half characters and what may be the start of a stop string, and log-probabilities until text
goes out again. A stop string ends the answer at the token that completes it; later tokens do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import FinishReason, TokenEvent, TokenLogprob
from gateway.conversation.detokenizer import Detokenizer
from gateway.conversation.stop import StopMatcher

__all__ = ["Choice", "Piece", "ToldToken"]


@dataclass(frozen=True, slots=True)
class ToldToken:
    """A token with its log-probability. Its text begins at `offset`, in characters of all that is told of the
    choice.
    """

    token_id: int
    offset: int
    logprob: TokenLogprob | None  # None: nothing stands before it that it could follow


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one answer. Log-probabilities come with the first text that is told after their tokens."""

    index: int
    text: str
    logprobs: Sequence[ToldToken] = ()
    finish_reason: FinishReason | None = None


class Choice:
    """One answer. Fed by its events until it is finished."""

    def __init__(
        self, index: int, detokenizer: Detokenizer, stops: StopMatcher, *, min_tokens: int, offset: int = 0
    ) -> None:
        """`offset` counts the characters that are told before it."""
        self.index = index
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stop_token_id: int | None = None  # the token that ended it
        self.hit_stop_string = False
        self.cumulative_logprob = 0.0  # of its tokens, where the engine tells them
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._num_characters = offset
        self._parts: list[str] = []  # ready, not told yet
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

    def push(self, event: TokenEvent) -> Piece:
        """Take the next event of this answer. Mutates; the piece may be empty."""
        for place, token_id in enumerate(event.token_ids):
            self._draw(token_id, None if event.logprobs is None else event.logprobs[place])
            if self.hit_stop_string:
                self.finish_reason = "stop"
                return self._take()
        if event.finish_reason is not None:
            self._feed(self._detokenizer.flush())
            self._parts.append(self._stops.flush())
            self.finish_reason = event.finish_reason
            self.stop_token_id = event.stop_token_id
        return self._take()

    def _draw(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self.token_ids.append(token_id)
        if logprob is not None:
            self.cumulative_logprob += logprob.logprob
            self._untold.append(ToldToken(token_id, self._num_characters, logprob))
        text = self._detokenizer.push(token_id)
        self._num_characters += len(text)
        self._feed(text)

    def _feed(self, text: str) -> None:
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
        told: list[ToldToken] = []
        if text or self.is_finished:
            told, self._untold = self._untold, told
        return Piece(self.index, text, told, self.finish_reason)
