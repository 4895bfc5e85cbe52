"""What a request adds to or takes from logits before anything is drawn: bias, penalties, tokens not allowed
yet.

Everything is computed from the sequence's tokens, so a cache hit, a preemption or a fork cannot change it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from engine.sampling.rows import Row

__all__ = ["adjust_logits"]


def adjust_logits(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Apply bias, penalties and the minimum length in place. logits: [num_rows, vocab] float32."""
    for row, place in zip(logits, rows, strict=True):
        sampling = place.sampling
        if sampling.repetition_penalty != 1.0:
            _repetition(row, place.tokens, sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            _presence_and_frequency(row, place.drawn, sampling.presence_penalty, sampling.frequency_penalty)
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias))
            row[ids] += torch.tensor(list(sampling.logit_bias.values()))
        if place.num_drawn < sampling.min_tokens and sampling.stop_token_ids:
            row[list(sampling.stop_token_ids)] = -torch.inf


def _repetition(row: torch.Tensor, tokens: Iterable[int], penalty: float) -> None:
    """Divide positive and multiply negative logits of tokens seen anywhere (Keskar et al., 2019)."""
    ids = torch.from_numpy(np.unique(np.fromiter(tokens, dtype=np.int64)))
    seen = row[ids]
    row[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _presence_and_frequency(
    row: torch.Tensor, drawn: Iterable[int], presence: float, frequency: float
) -> None:
    ids, counts = np.unique(np.fromiter(drawn, dtype=np.int64), return_counts=True)
    if len(ids):
        loss = presence + frequency * counts.astype(np.float32)
        row[torch.from_numpy(ids)] -= torch.from_numpy(loss)
