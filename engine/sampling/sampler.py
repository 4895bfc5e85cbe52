"""Draws one token for each row of a step.

A draw is the inverse of the cumulative distribution at one uniform number, so equal logits, seed, choice and
position give an equal token. Log-probabilities are of the model's own distribution, before anything the
request asked for.
"""

from collections.abc import Sequence as Rows

import numpy as np
import torch

from engine.sampling.filters import keep_best
from engine.sampling.penalties import adjust_logits
from engine.sampling.randomness import uniform
from engine.sequence import MAX_TOP_LOGPROBS, Sequence
from engine.step import Draw

__all__ = ["sample"]

_GREEDY_BELOW = 1e-5  # temperatures too small to divide by are greedy


def sample(logits: torch.Tensor, sequences: Rows[Sequence]) -> tuple[Draw, ...]:
    """Draw a token for each sequence. logits: [num_rows, vocab] float32, overwritten."""
    reported = [row for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
    logprobs = torch.log_softmax(logits[reported], dim=-1) if reported else None
    adjust_logits(logits, sequences)
    token_ids = _draw(logits, sequences)
    draws = [Draw(token_id) for token_id in token_ids]
    if logprobs is not None:
        for row, draw in zip(
            reported,
            _report(logprobs, [token_ids[row] for row in reported], sequences, reported),
            strict=True,
        ):
            draws[row] = draw
    return tuple(draws)


def _report(
    logprobs: torch.Tensor, token_ids: list[int], sequences: Rows[Sequence], rows: list[int]
) -> list[Draw]:
    """Draws with their log-probabilities. logprobs: [num_reported, vocab]; rows: the sequences they belong
    to.
    """
    drawn = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])[:, 0].tolist()
    values, ids = torch.topk(logprobs, min(MAX_TOP_LOGPROBS, logprobs.shape[-1]), dim=-1)
    return [
        Draw(token_id, logprob, tuple(zip(best_ids, best, strict=True))[: sequences[row].sampling.logprobs])
        for token_id, logprob, best_ids, best, row in zip(
            token_ids, drawn, ids.tolist(), values.tolist(), rows, strict=True
        )
    ]


def _draw(logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
    token_ids = logits.argmax(dim=-1).tolist()  # what greedy rows draw
    rows = [row for row, seq in enumerate(sequences) if seq.sampling.temperature >= _GREEDY_BELOW]
    if not rows:
        return list(token_ids)
    drawn = [sequences[row] for row in rows]
    probabilities = _tempered(logits[rows], drawn)
    numbers = torch.from_numpy(_numbers(drawn)).to(logits.device)
    plain = [row for row, sequence in enumerate(drawn) if not _is_filtered(sequence)]
    filtered = [row for row, sequence in enumerate(drawn) if _is_filtered(sequence)]
    if plain:
        weights = probabilities[plain].double()
        for row, token_id in zip(plain, _inverse(weights, numbers[plain]).tolist(), strict=True):
            token_ids[rows[row]] = token_id
    if filtered:
        for row, token_id in zip(
            filtered,
            _draw_filtered(probabilities[filtered], numbers[filtered], [drawn[r] for r in filtered]),
            strict=True,
        ):
            token_ids[rows[row]] = token_id
    return list(token_ids)


def _is_filtered(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    return sampling.top_k is not None or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _tempered(logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """softmax(logits / temperature), [num_rows, vocab]; the best logit is taken off first, so nothing
    overflows.
    """
    temperatures = torch.tensor([seq.sampling.temperature for seq in sequences], device=logits.device)
    return torch.softmax((logits - logits.amax(-1, keepdim=True)) / temperatures[:, None], dim=-1)


def _numbers(sequences: list[Sequence]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    seeds = np.array([sequence.sampling.seed for sequence in sequences], dtype=np.uint64)
    choices = np.array([sequence.choice for sequence in sequences], dtype=np.uint64)
    positions = np.array([sequence.num_drawn for sequence in sequences], dtype=np.uint64)
    return uniform(seeds, choices, positions)


def _draw_filtered(
    probabilities: torch.Tensor, numbers: torch.Tensor, sequences: list[Sequence]
) -> list[int]:
    vocab_size = probabilities.shape[-1]
    top_k = torch.tensor([min(seq.sampling.top_k or vocab_size, vocab_size) for seq in sequences])
    # A sum of 1 may be reached before the last token by rounding: a top_p of 1 must still keep all of them.
    nuclei = [seq.sampling.top_p if seq.sampling.top_p < 1.0 else torch.inf for seq in sequences]
    top_p = torch.tensor(nuclei, dtype=torch.float64)
    min_p = torch.tensor([sequence.sampling.min_p for sequence in sequences], dtype=torch.float64)
    device = probabilities.device
    kept = keep_best(probabilities, top_k.to(device), top_p.to(device), min_p.to(device))
    places = _inverse(kept.weights, numbers)
    return list(kept.token_ids.gather(1, places[:, None])[:, 0].tolist())


def _inverse(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Where the cumulative weight first exceeds number * total. weights: [num_rows, width] float64."""
    cumulative = weights.cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    return places.clamp(max=weights.shape[-1] - 1)
