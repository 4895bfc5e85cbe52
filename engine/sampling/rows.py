"""One place at which a token is to be drawn: a sequence, and what is proposed before that place."""

from array import array
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.sampling.randomness import uniform
from engine.sequence import MAX_TOP_LOGPROBS, SamplingParams, Sequence

__all__ = ["Row", "demanding_row", "numbers_of"]

_GREEDY_BELOW = 1e-5  # temperatures too small to divide by are greedy


@dataclass(frozen=True, slots=True)
class Row:
    """A row of logits as the sampler sees it: as if the proposed tokens had been drawn already."""

    sequence: Sequence
    proposed: tuple[int, ...] = ()

    @property
    def sampling(self) -> SamplingParams:
        """What was asked for."""
        return self.sequence.sampling

    @property
    def num_drawn(self) -> int:
        """Tokens drawn before this place."""
        return self.sequence.num_drawn + len(self.proposed)

    @property
    def tokens(self) -> "array[int]":
        """All tokens before this place."""
        return self.sequence.tokens + array("i", self.proposed) if self.proposed else self.sequence.tokens

    @property
    def drawn(self) -> "array[int]":
        """Those of them that were drawn."""
        return self.tokens[self.sequence.num_prompt_tokens :]

    @property
    def is_adjusted(self) -> bool:
        """Whether bias, penalties or a minimum length may change the logits."""
        sampling = self.sampling
        return bool(
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.logit_bias
            or self.num_drawn < sampling.min_tokens
        )

    @property
    def is_drawn(self) -> bool:
        """Whether chance decides; else the likeliest token is taken."""
        return not self.is_searched and self.sampling.temperature >= _GREEDY_BELOW

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens may not be drawn."""
        sampling = self.sampling
        return sampling.top_k is not None or sampling.top_p < 1.0 or sampling.min_p > 0.0

    @property
    def is_searched(self) -> bool:
        """Whether the row is of a beam search."""
        return self.sampling.beam is not None

    @property
    def is_reported(self) -> bool:
        """Whether the drawn token's log-probability is told."""
        return self.sampling.logprobs is not None and not self.is_searched

    @property
    def num_best(self) -> int:
        """Of how many of the likeliest tokens log-probabilities are told."""
        beam = self.sampling.beam
        return max(0 if beam is None else 2 * beam.width, self.sampling.logprobs or 0)


def numbers_of(rows: Collection[Row]) -> npt.NDArray[np.float64]:
    """The number in [0, 1) that decides each row's draw: [num_rows]."""
    seeds = np.array([row.sampling.seed for row in rows], dtype=np.uint64)
    choices = np.array([row.sequence.choice for row in rows], dtype=np.uint64)
    positions = np.array([row.num_drawn for row in rows], dtype=np.uint64)
    return uniform(seeds, choices, positions)


def demanding_row() -> Row:
    """A row that asks for all that costs time or memory: what samplers are compiled and measured with."""
    sampling = SamplingParams(
        max_tokens=1,
        top_k=40,
        top_p=0.9,
        min_p=0.01,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias={0: 1.0},
        logprobs=MAX_TOP_LOGPROBS,
    )
    return Row(Sequence("", 0, array("i", [0]), 1, sampling, b""))
