"""One place at which a token is to be drawn: a sequence, and what is proposed before that place."""

from array import array
from dataclasses import dataclass

from engine.sequence import SamplingParams, Sequence

__all__ = ["Row"]


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
