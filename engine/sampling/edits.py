"""Bias, penalties and tokens not allowed yet, as one edit for each token that they name.

What `penalties.py` does to logits one thing after the other, said as numbers for `kernels.adjust_logits`,
which does them in the same order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.sampling.rows import Row

__all__ = ["Edits", "edits_of"]

Ids = npt.NDArray[np.int32]


class Edits(NamedTuple):
    """No token of a row comes twice."""

    places: npt.NDArray[np.int32]  # [num_edits, 2]: row and token
    amounts: npt.NDArray[np.float32]  # [num_edits, 3]: penalty (1 for none), loss and bias


def edits_of(rows: Sequence[Row]) -> Edits:
    """What the rows ask for."""
    places, amounts = [np.empty((0, 2), np.int32)], [np.empty((0, 3), np.float32)]
    for place, row in enumerate(rows):
        if row.is_adjusted:
            ids, changes = _edits_of(row)
            places.append(np.stack((np.full_like(ids, place), ids), axis=1))
            amounts.append(changes)
    return Edits(np.concatenate(places), np.concatenate(amounts))


def _edits_of(row: Row) -> tuple[Ids, npt.NDArray[np.float32]]:
    """The tokens that one row names, and what becomes of each."""
    sampling = row.sampling
    seen = _ids(row.tokens if sampling.repetition_penalty != 1.0 else ())
    counted = _ids(row.drawn if sampling.presence_penalty or sampling.frequency_penalty else ())
    biased = _ids(tuple(sampling.logit_bias))
    forbidden = _ids(sampling.stop_token_ids if row.num_drawn < sampling.min_tokens else ())
    ids = np.unique(np.concatenate((seen, counted, biased, forbidden)))
    amounts = np.zeros((len(ids), 3), np.float32)
    penalty, loss, bias = amounts.T
    penalty[:] = 1.0
    penalty[np.searchsorted(ids, seen)] = sampling.repetition_penalty
    drawn, counts = np.unique(counted, return_counts=True)
    loss[np.searchsorted(ids, drawn)] = (
        sampling.presence_penalty + sampling.frequency_penalty * counts.astype(np.float32)
    )
    bias[np.searchsorted(ids, biased)] = tuple(sampling.logit_bias.values())
    bias[np.searchsorted(ids, forbidden)] = -np.inf
    return ids, amounts


def _ids(token_ids: Sequence[int]) -> Ids:
    return np.array(token_ids, np.int32)
