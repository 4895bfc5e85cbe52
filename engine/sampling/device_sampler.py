"""Draws tokens where logits lie on a device, which is waited for once a call.

What rows ask for is worked out on the host while the device still computes the logits, and follows them in
one copy. What is found stays there until everything that a step brings comes back in one piece.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from engine.sampling.allowed import Allowed, forbid_others
from engine.sampling.edits import edits_of
from engine.sampling.logprobs import Found, find, find_best, tell
from engine.sampling.rows import Row, numbers_of
from engine.sampling.sampler import Sampled, Weighed
from engine.sequence import SamplingParams
from engine.step import Draw
from engine.transfer import Arrays, fetch, send
from kernels.operations import SamplingOperations

__all__ = ["DeviceSampler"]

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)  # what is asked of a row that is not drawn


class _Asked(NamedTuple):
    """What the rows ask for, on the device."""

    temperatures: torch.Tensor  # [num_rows] float32
    top_k: torch.Tensor  # [num_rows] int32
    top_p: torch.Tensor  # [num_rows] float64
    min_p: torch.Tensor  # [num_rows] float64
    numbers: torch.Tensor  # [num_rows] float64
    edited: torch.Tensor  # [num_edits, 2] int32: rows and tokens
    amounts: torch.Tensor  # [num_edits, 3] float32: what becomes of them
    reported: torch.Tensor  # [num_reported] int64: rows
    searched: torch.Tensor  # [num_searched] int64: rows


class _Report(NamedTuple):
    """Log-probabilities that are still on the device."""

    found: Found
    counts: list[int]  # of the best, at each place


class DeviceSampler:
    """Samples all rows of a step together, in few launches."""

    def __init__(self, operations: SamplingOperations, vocab_size: int) -> None:
        """Raises ValueError for a vocabulary that is too large to draw from."""
        if vocab_size > operations.max_vocab:
            raise ValueError(
                f"the model's vocab_size is {vocab_size}, but a GPU draws from {operations.max_vocab} tokens "
                'at most: set device to "cpu"'
            )
        self._operations = operations

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[Row],
        weighed: Iterable[Weighed] = (),
        *,
        allowed: Allowed | None = None,
    ) -> Sampled:
        """As `Sampler` has it."""
        reported = [place for place, row in enumerate(rows) if row.is_reported]
        searched = [place for place, row in enumerate(rows) if row.is_searched]
        asked = _send(rows, reported, searched, logits)
        reports = []
        own = torch.log_softmax(logits[asked.reported], dim=-1) if reported else None
        if allowed is not None:
            forbid_others(logits, allowed)
        self._adjust(logits, asked)
        if searched:
            counts = [rows[place].num_best for place in searched]
            found = find_best(torch.log_softmax(logits[asked.searched], dim=-1), max(counts))
            reports.append(_Report(found, counts))
        tokens = self._draw(logits, rows, asked)
        if own is not None:
            counts = [rows[place].num_best for place in reported]
            reports.append(_Report(find(own, tokens[asked.reported], max(counts)), counts))
        reports += [_weigh(piece) for piece in weighed]
        token_ids, told = _fetch(tokens, reports)
        draws = [Draw(token_id) for token_id in token_ids]
        for places in (searched, reported):
            if places:
                for place, draw in zip(places, told.pop(0), strict=True):
                    draws[place] = draw
        return Sampled(draws, told)

    def draw_tokens(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """As `Sampler` has it."""
        asked = _send(rows, [], [], logits)
        self._adjust(logits, asked)
        return _fetch(self._draw(logits, rows, asked), [])[0]

    def _adjust(self, logits: torch.Tensor, asked: _Asked) -> None:
        if len(asked.edited):
            self._operations.adjust_logits(logits, asked.edited, asked.amounts)

    def _draw(self, logits: torch.Tensor, rows: Sequence[Row], asked: _Asked) -> torch.Tensor:
        """Each row's token, [num_rows] int64. Overwrites logits."""
        if not any(row.is_drawn for row in rows):
            return logits.argmax(dim=-1)  # the first of the greatest
        return self._operations.sample(
            logits, asked.temperatures, asked.top_k, asked.top_p, asked.min_p, asked.numbers
        )


def _send(rows: Sequence[Row], reported: list[int], searched: list[int], logits: torch.Tensor) -> _Asked:
    """One copy, which nobody waits for."""
    vocab_size = logits.shape[1]
    asked = [row.sampling if row.is_drawn else _GREEDY for row in rows]
    arrays: Arrays = (
        np.array([each.temperature for each in asked], np.float32),
        np.array([min(each.top_k or vocab_size, vocab_size) for each in asked], np.int32),
        np.array([each.top_p for each in asked], np.float64),
        np.array([each.min_p for each in asked], np.float64),
        numbers_of(rows),
        *edits_of(rows),
        np.array(reported, np.int64),
        np.array(searched, np.int64),
    )
    return _Asked(*send(arrays, logits.device))


def _weigh(piece: Weighed) -> _Report:
    logprobs = torch.log_softmax(piece.logits, dim=-1)
    (token_ids,) = send([np.array(piece.token_ids, np.int64)], logprobs.device)
    return _Report(find(logprobs, token_ids, piece.num_best), [piece.num_best] * len(token_ids))


def _fetch(tokens: torch.Tensor, reports: Sequence[_Report]) -> tuple[list[int], list[list[Draw]]]:
    """The tokens, and what each report tells. The one place that waits."""
    found = [each for report in reports for each in report.found]
    numbers = iter(fetch([tokens, *found]))
    token_ids: list[int] = next(numbers).tolist()
    return token_ids, [tell([*islice(numbers, len(Found._fields))], report.counts) for report in reports]
