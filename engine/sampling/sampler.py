"""What a step asks of whoever samples: a token for each row, and what prompts were worth.

Logits and what was asked of each row go in, draws come out. Both samplers draw from one distribution, the one
that the request asked for. Log-probabilities are of the model's own, before anything the request asked for;
those of a beam search come after penalties.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.sampling.allowed import Allowed
from engine.sampling.rows import Row
from engine.step import Draw

__all__ = ["Sampled", "Sampler", "Weighed"]


class Weighed(NamedTuple):
    """Places of a prompt, whose tokens are known and not drawn."""

    logits: torch.Tensor  # [num_places, vocab] float32
    token_ids: Sequence[int]  # what stands at each place
    num_best: int  # so many of the likeliest are told beside each


class Sampled(NamedTuple):
    """What one step brought."""

    draws: list[Draw]  # one a row
    weighed: list[list[Draw]]  # one for each place, of each `Weighed` in their order


class Sampler(Protocol):
    """Draws tokens. One thread calls it."""

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[Row],
        weighed: Iterable[Weighed] = (),
        *,
        allowed: Allowed | None = None,
    ) -> Sampled:
        """Draw a token for each row. logits: [num_rows, vocab] float32, overwritten. What is not `allowed` is
        not drawn.

        For a beam search nothing is drawn: the token is the likeliest one, and `top` holds what could follow,
        twice as many as there are hypotheses, weighed after penalties.

        All that was asked of the device before has been carried out on return. `weighed` is gone through
        once, so that the logits of one piece after the other need memory.
        """
        ...

    def draw_tokens(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """The token of each row alone. logits: [num_rows, vocab] float32, overwritten."""
        ...
