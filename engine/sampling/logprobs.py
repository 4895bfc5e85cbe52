"""Log-probabilities of tokens and of the likeliest beside them: found where logits lie, told as draws.

What is found stays on its device until somebody fetches it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from engine.sequence import MAX_TOP_LOGPROBS
from engine.step import Draw

__all__ = ["Found", "find", "find_best", "tell"]


class Found(NamedTuple):
    """One token at each place, and so many of the likeliest, best first."""

    token_ids: torch.Tensor  # [num_places] int64
    chosen: torch.Tensor  # [num_places] float32, its log-probability
    best_ids: torch.Tensor  # [num_places, width] int64
    best: torch.Tensor  # [num_places, width] float32


def find(logprobs: torch.Tensor, token_ids: torch.Tensor, num_best: int) -> Found:
    """logprobs: [num_places, vocab]; token_ids: [num_places] int64.

    Finds fewer than `num_best` beyond MAX_TOP_LOGPROBS and where the vocabulary ends.
    """
    width = min(num_best, MAX_TOP_LOGPROBS, logprobs.shape[-1])
    best, best_ids = torch.topk(logprobs, width, dim=-1)
    return Found(token_ids, logprobs.gather(1, token_ids[:, None])[:, 0], best_ids, best)


def find_best(logprobs: torch.Tensor, num_best: int) -> Found:
    """The likeliest tokens of each place, the first of which counts as its token. logprobs: [num_places,
    vocab].
    """
    best, best_ids = torch.topk(logprobs, min(num_best, logprobs.shape[-1]), dim=-1)
    return Found(best_ids[:, 0], best[:, 0], best_ids, best)


def tell(found: Sequence[npt.NDArray[Any]], counts: Sequence[int]) -> list[Draw]:
    """What `Found` holds, once it is on the host. counts: how many of the best are told at each place."""
    rows = zip(*(each.tolist() for each in found), counts, strict=True)
    return [
        Draw(token_id, logprob, tuple(zip(best_ids, best, strict=True))[:count])
        for token_id, logprob, best_ids, best, count in rows
    ]
