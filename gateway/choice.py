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
from gateway.wire.chat_response import LogprobEntry, TopLogprob

__all__ = ["Choice", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one answer. Log-probabilities come with the first text that is told after their tokens."""

    index: int
    text: str
    logprobs: Sequence[LogprobEntry] = ()
    finish_reason: FinishReason | None = None


class Choice:
    """One answer. Fed by its events until it is finished."""

    def __init__(self, index: int, detokenizer: Detokenizer, stops: StopMatcher, *, min_tokens: int) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.hit_stop_string = False
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._parts: list[str] = []  # ready, not told yet
        self._entries: list[LogprobEntry] = []  # not told yet

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be told."""
        return self.finish_reason is not None

    def push(self, event: TokenEvent) -> Piece:
        """Take the next event of this answer. Mutates; the piece may be empty."""
        for place, token_id in enumerate(event.token_ids):
            self.token_ids.append(token_id)
            if event.logprobs is not None:
                self._entries.append(self._entry(token_id, event.logprobs[place]))
            self._feed(self._detokenizer.push(token_id))
            if self.hit_stop_string:
                self.finish_reason = "stop"
                return self._take()
        if event.finish_reason is not None:
            self._feed(self._detokenizer.flush())
            self._parts.append(self._stops.flush())
            self.finish_reason = event.finish_reason
        return self._take()

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
        entries: list[LogprobEntry] = []
        if text or self.is_finished:
            entries, self._entries = self._entries, entries
        return Piece(self.index, text, entries, self.finish_reason)

    def _entry(self, token_id: int, logprob: TokenLogprob) -> LogprobEntry:
        return LogprobEntry(
            token=self._detokenizer.token_text(token_id),
            logprob=_finite(logprob.logprob),
            bytes=list(self._detokenizer.token_bytes(token_id)),
            top_logprobs=[self._candidate(candidate, value) for candidate, value in logprob.top],
        )

    def _candidate(self, token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(
            token=self._detokenizer.token_text(token_id),
            logprob=_finite(logprob),
            bytes=list(self._detokenizer.token_bytes(token_id)),
        )


def _finite(logprob: float) -> float:
    # the protocol's word for "impossible"; JSON has no infinities
    return max(logprob, -9999.0)
