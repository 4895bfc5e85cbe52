"""Beam search: the likeliest answers, followed several at once.

Each round takes the best continuations of all live hypotheses together. One that ends is set aside with its
score, the sum of its log-probabilities divided by a power of its length; the best that go on take the places
of all. As in transformers' generation: twice as many continuations as places are looked at, and an end
counts only among the best `width` of them.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.sequence import BeamParams, FinishReason
from engine.step import Draw

__all__ = ["BeamSearch", "Continuation", "Hypothesis"]

Candidates = Rows[tuple[int, float]]  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An answer, whole or so far. Its last token is the one that ended it, if one did."""

    draws: tuple[Draw, ...]
    total: float  # of the log-probabilities
    finish_reason: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        """What hypotheses are compared by when they have ended."""
        return _score(self.total, len(self.draws), length_penalty)


class Continuation(NamedTuple):
    """A hypothesis that goes on: the place of the one it grew from, and the token that it added."""

    parent: int
    token_id: int


class _Extension(NamedTuple):
    total: float
    parent: int
    token_id: int
    logprob: float


class BeamSearch:
    """The hypotheses of one request. Knows neither sequences nor blocks."""

    def __init__(
        self, params: BeamParams, *, max_tokens: int, stop_token_ids: Rows[int], num_logprobs: int = 0
    ) -> None:
        """`num_logprobs`: how many of the candidates at each token are kept with it."""
        self.live: list[Hypothesis] = [Hypothesis((), 0.0)]
        self.is_over = False
        self._params = params
        self._max_tokens = max_tokens
        self._stops = frozenset(stop_token_ids)
        self._num_logprobs = num_logprobs
        self._ended: list[Hypothesis] = []  # best first, at most `width`

    def advance(self, candidates: Rows[Candidates]) -> tuple[list[Continuation], list[int]]:
        """One round, given the best candidates after each live hypothesis: twice `width`, where there are.

        Returns those that go on, best first, which are `live` from now on; and the places of those that an
        end was found of.
        """
        assert len(candidates) == len(self.live), "every live hypothesis has candidates"
        assert not self.is_over, "the search is over"
        extensions = sorted(
            (
                _Extension(parent.total + logprob, place, token_id, logprob)
                for place, (parent, row) in enumerate(zip(self.live, candidates, strict=True))
                for token_id, logprob in row
                if logprob > -math.inf
            ),
            key=lambda each: (-each.total, each.parent, each.token_id),
        )
        width, before = self._params.width, self.live
        going_on: list[Continuation] = []
        ended_at: list[int] = []
        self.live = []
        for rank, each in enumerate(extensions[: 2 * width]):
            row = tuple(candidates[each.parent][: self._num_logprobs])
            draw = Draw(each.token_id, each.logprob, row)
            grown = Hypothesis((*before[each.parent].draws, draw), each.total)
            if each.token_id in self._stops:
                if rank < width:
                    self._set_aside(grown, "stop")
                    ended_at.append(each.parent)
            elif len(going_on) < width:
                going_on.append(Continuation(each.parent, each.token_id))
                self.live.append(grown)
        self.is_over = self._is_over()
        return going_on, ended_at

    def best(self, num_wanted: int) -> list[Hypothesis]:
        """The best answers, best first. A search that found fewer repeats its last one."""
        found = [*self._ended, *(replace(each, finish_reason="length") for each in self.live)]
        found.sort(key=self._rank)
        return [found[min(place, len(found) - 1)] for place in range(num_wanted)]

    def _rank(self, hypothesis: Hypothesis) -> float:
        return -hypothesis.score(self._params.length_penalty)

    def _set_aside(self, hypothesis: Hypothesis, reason: FinishReason) -> None:
        self._ended.append(Hypothesis(hypothesis.draws, hypothesis.total, reason))
        self._ended.sort(key=self._rank)
        del self._ended[self._params.width :]

    def _is_over(self) -> bool:
        if not self.live or len(self.live[0].draws) >= self._max_tokens:
            return True
        if len(self._ended) < self._params.width:
            return False
        if self._params.early_stopping is True or self._cannot_improve():
            self.live = []  # what goes on is no answer any more
            return True
        return False

    def _cannot_improve(self) -> bool:
        penalty = self._params.length_penalty
        length = len(self.live[0].draws)
        if self._params.early_stopping == "never" and penalty > 0:
            length = self._max_tokens
        best_to_come = max(_score(each.total, length, penalty) for each in self.live)
        return self._ended[-1].score(penalty) >= best_to_come


def _score(total: float, length: int, length_penalty: float) -> float:
    return total / math.pow(length, length_penalty)
