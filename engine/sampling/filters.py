"""Which tokens may be drawn: the best k, the smallest set of mass p, those within a factor of the best.

    kept = rank < top_k  and  mass of better ones (among the best k) < top_p  and  p >= min_p * p_best

Only as many tokens are sorted as are needed: a row whose nucleus lies inside the best few hundred never pays
for the whole vocabulary, and the result is the same.
"""

from dataclasses import dataclass

import torch

__all__ = ["Candidates", "keep_best"]

_FEW = 512  # sorting this many of 49,152 takes about a tenth of sorting all


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may be drawn, best first, with their weights; a weight of 0 means not kept."""

    token_ids: torch.Tensor  # [num_rows, width] int64
    weights: torch.Tensor  # [num_rows, width] float64, not normalized


def keep_best(
    probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> Candidates:
    """Filter rows. probabilities: [num_rows, vocab] float32; top_k: [num_rows] int64; top_p, min_p:
    [num_rows] float64.
    """
    vocab_size = probabilities.shape[-1]
    width = min(_FEW, vocab_size)
    candidates = _keep(probabilities, top_k, top_p, min_p, width)
    if width < vocab_size and not _is_settled(candidates, top_k):
        return _keep(probabilities, top_k, top_p, min_p, vocab_size)
    return candidates


def _keep(
    probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, width: int
) -> Candidates:
    best, token_ids = torch.topk(probabilities, width, dim=-1)  # [num_rows, width], best first
    weights = best.double()
    ranks = torch.arange(width, device=weights.device)
    in_top_k = ranks < top_k[:, None]
    mass = (weights * in_top_k).cumsum(-1)
    # Without a top-k the mass is that of all tokens, which is 1; with one it is that of the best k.
    is_cut = (top_k < probabilities.shape[-1])[:, None]
    total = torch.where(is_cut, mass[:, -1:], torch.ones_like(mass[:, -1:]))
    kept = in_top_k & (mass - weights < top_p[:, None] * total) & (weights >= min_p[:, None] * weights[:, :1])
    kept[:, 0] = True
    return Candidates(token_ids, weights * kept)


def _is_settled(candidates: Candidates, top_k: torch.Tensor) -> bool:
    """Whether no row could keep a token beyond the sorted ones: its last sorted one was dropped already."""
    width = candidates.weights.shape[-1]
    return bool(((candidates.weights[:, -1] == 0) | (top_k <= width)).all())
