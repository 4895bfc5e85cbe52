"""Draws one token for each row of a step.

A draw is the inverse of the cumulative distribution at one uniform number, so equal logits, seed, choice and
position give an equal token. Log-probabilities are of the model's own distribution, before anything the
request asked for.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling.filters import keep_best
from engine.sampling.penalties import adjust_logits
from engine.sampling.randomness import uniform
from engine.sampling.rows import Row
from engine.sequence import MAX_TOP_LOGPROBS
from engine.step import Draw

__all__ = ["draw_tokens", "report", "sample"]

_GREEDY_BELOW = 1e-5  # temperatures too small to divide by are greedy


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[Draw]:
    """Draw a token for each row. logits: [num_rows, vocab] float32, overwritten.

    For a beam search nothing is drawn: the token is the likeliest one, and `top` holds what could follow,
    twice as many as there are hypotheses, weighed after penalties.
    """
    reported = [place for place, row in enumerate(rows) if _is_reported(row)]
    logprobs = torch.log_softmax(logits[reported], dim=-1) if reported else None
    token_ids = draw_tokens(logits, rows)
    draws = [Draw(token_id) for token_id in token_ids]
    if logprobs is not None:
        told = report(
            logprobs,
            [token_ids[place] for place in reported],
            [rows[place].sampling.logprobs or 0 for place in reported],
        )
        for place, draw in zip(reported, told, strict=True):
            draws[place] = draw
    for place, row in enumerate(rows):
        if row.sampling.beam is not None:
            draws[place] = _candidates(logits[place], row)
    return draws


def draw_tokens(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """The token of each row alone. logits: [num_rows, vocab] float32, overwritten."""
    adjust_logits(logits, rows)
    return _draw(logits, rows)


def report(logprobs: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[Draw]:
    """Tokens with their log-probabilities, and so many of the best at each place. logprobs: [num_rows,
    vocab].

    Raises nothing for a count above MAX_TOP_LOGPROBS: there are no more.
    """
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])[:, 0].tolist()
    width = min(max(counts, default=0), MAX_TOP_LOGPROBS, logprobs.shape[-1])
    values, ids = torch.topk(logprobs, width, dim=-1)
    return [
        Draw(token_id, logprob, tuple(zip(best_ids, best, strict=True))[:count])
        for token_id, logprob, best_ids, best, count in zip(
            token_ids, chosen, ids.tolist(), values.tolist(), counts, strict=True
        )
    ]


def _is_reported(row: Row) -> bool:
    return row.sampling.logprobs is not None and row.sampling.beam is None


def _candidates(logits: torch.Tensor, row: Row) -> Draw:
    """logits: [vocab], penalties applied."""
    assert row.sampling.beam is not None, "only a search has candidates"
    count = max(2 * row.sampling.beam.width, row.sampling.logprobs or 0)
    values, ids = torch.topk(torch.log_softmax(logits, dim=-1), min(count, len(logits)))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Draw(top[0][0], top[0][1], top)


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    token_ids = _likeliest(logits)  # what greedy rows draw
    places = [place for place, row in enumerate(rows) if _is_drawn(row)]
    if not places:
        return token_ids
    drawn = [rows[place] for place in places]
    probabilities = _tempered(logits[places], drawn)
    numbers = torch.from_numpy(_numbers(drawn)).to(logits.device)
    plain = [place for place, row in enumerate(drawn) if not _is_filtered(row)]
    filtered = [place for place, row in enumerate(drawn) if _is_filtered(row)]
    if plain:
        weights = probabilities[plain].double()
        for place, token_id in zip(plain, _inverse(weights, numbers[plain]).tolist(), strict=True):
            token_ids[places[place]] = token_id
    if filtered:
        for place, token_id in zip(
            filtered,
            _draw_filtered(probabilities[filtered], numbers[filtered], [drawn[place] for place in filtered]),
            strict=True,
        ):
            token_ids[places[place]] = token_id
    return token_ids


def _likeliest(logits: torch.Tensor) -> list[int]:
    """The first of each row's greatest logits."""
    # On a CPU torch looks at one number at a time, numpy at a vector.
    best = logits.numpy().argmax(axis=-1) if logits.device.type == "cpu" else logits.argmax(dim=-1)
    return [int(token_id) for token_id in best.tolist()]


def _is_drawn(row: Row) -> bool:
    return row.sampling.beam is None and row.sampling.temperature >= _GREEDY_BELOW


def _is_filtered(row: Row) -> bool:
    sampling = row.sampling
    return sampling.top_k is not None or sampling.top_p < 1.0 or sampling.min_p > 0.0


def _tempered(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """softmax(logits / temperature), [num_rows, vocab]; the best logit is taken off first, so nothing
    overflows.
    """
    temperatures = torch.tensor([row.sampling.temperature for row in rows], device=logits.device)
    return torch.softmax((logits - logits.amax(-1, keepdim=True)) / temperatures[:, None], dim=-1)


def _numbers(rows: list[Row]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    seeds = np.array([row.sampling.seed for row in rows], dtype=np.uint64)
    choices = np.array([row.sequence.choice for row in rows], dtype=np.uint64)
    positions = np.array([row.num_drawn for row in rows], dtype=np.uint64)
    return uniform(seeds, choices, positions)


def _draw_filtered(probabilities: torch.Tensor, numbers: torch.Tensor, rows: list[Row]) -> list[int]:
    vocab_size = probabilities.shape[-1]
    top_k = torch.tensor([min(row.sampling.top_k or vocab_size, vocab_size) for row in rows])
    # A sum of 1 may be reached before the last token by rounding: a top_p of 1 must still keep all of them.
    nuclei = [row.sampling.top_p if row.sampling.top_p < 1.0 else torch.inf for row in rows]
    top_p = torch.tensor(nuclei, dtype=torch.float64)
    min_p = torch.tensor([row.sampling.min_p for row in rows], dtype=torch.float64)
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
