"""Draws one token for each row of a step where logits lie in the host's memory.

A draw is the inverse of the cumulative distribution at one uniform number, so equal logits, seed, choice and
position give an equal token.
"""

from collections.abc import Iterable, Sequence

import torch

from engine.sampling.allowed import Allowed, forbid_others
from engine.sampling.filters import keep_best
from engine.sampling.logprobs import find, find_best, tell
from engine.sampling.penalties import adjust_logits
from engine.sampling.rows import Row, numbers_of
from engine.sampling.sampler import Sampled, Weighed
from engine.step import Draw

__all__ = ["HostSampler"]


class HostSampler:
    """Samples in plain torch, whatever fits each row."""

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
        logprobs = torch.log_softmax(logits[reported], dim=-1) if reported else None
        if allowed is not None:
            forbid_others(logits, allowed)
        token_ids = self.draw_tokens(logits, rows) if rows else []
        draws = [Draw(token_id) for token_id in token_ids]
        if logprobs is not None:
            told = _report(
                logprobs,
                [token_ids[place] for place in reported],
                [rows[place].num_best for place in reported],
            )
            for place, draw in zip(reported, told, strict=True):
                draws[place] = draw
        for place, row in enumerate(rows):
            if row.is_searched:
                draws[place] = _candidates(logits[place], row)
        return Sampled(draws, [_weigh(piece) for piece in weighed])

    def draw_tokens(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """As `Sampler` has it."""
        adjust_logits(logits, rows)
        return _draw(logits, rows)


def _report(logprobs: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[Draw]:
    """Tokens with their log-probabilities, and so many of the best at each place. logprobs: [num_rows,
    vocab].
    """
    found = find(logprobs, torch.tensor(token_ids), max(counts, default=0))
    return tell([each.numpy() for each in found], counts)


def _weigh(piece: Weighed) -> list[Draw]:
    logprobs = torch.log_softmax(piece.logits, dim=-1)
    return _report(logprobs, piece.token_ids, [piece.num_best] * len(piece.token_ids))


def _candidates(logits: torch.Tensor, row: Row) -> Draw:
    """logits: [vocab], penalties applied."""
    found = find_best(torch.log_softmax(logits[None], dim=-1), row.num_best)
    (draw,) = tell([each.numpy() for each in found], [row.num_best])
    return draw


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    token_ids = _likeliest(logits)  # what greedy rows draw
    places = [place for place, row in enumerate(rows) if row.is_drawn]
    if not places:
        return token_ids
    drawn = [rows[place] for place in places]
    probabilities = _tempered(logits[places], drawn)
    numbers = torch.from_numpy(numbers_of(drawn))
    plain = [place for place, row in enumerate(drawn) if not row.is_filtered]
    filtered = [place for place, row in enumerate(drawn) if row.is_filtered]
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
    # Torch looks at one number at a time, numpy at a vector.
    return [int(token_id) for token_id in logits.numpy().argmax(axis=-1).tolist()]


def _tempered(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """softmax(logits / temperature), [num_rows, vocab]; the best logit is taken off first, so nothing
    overflows.
    """
    temperatures = torch.tensor([row.sampling.temperature for row in rows])
    return torch.softmax((logits - logits.amax(-1, keepdim=True)) / temperatures[:, None], dim=-1)


def _draw_filtered(probabilities: torch.Tensor, numbers: torch.Tensor, rows: list[Row]) -> list[int]:
    vocab_size = probabilities.shape[-1]
    top_k = torch.tensor([min(row.sampling.top_k or vocab_size, vocab_size) for row in rows])
    # A sum of 1 may be reached before the last token by rounding: a top_p of 1 must still keep all of them.
    nuclei = [row.sampling.top_p if row.sampling.top_p < 1.0 else torch.inf for row in rows]
    top_p = torch.tensor(nuclei, dtype=torch.float64)
    min_p = torch.tensor([row.sampling.min_p for row in rows], dtype=torch.float64)
    kept = keep_best(probabilities, top_k, top_p, min_p)
    places = _inverse(kept.weights, numbers)
    return list(kept.token_ids.gather(1, places[:, None])[:, 0].tolist())


def _inverse(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Where the cumulative weight first exceeds number * total. weights: [num_rows, width] float64."""
    cumulative = weights.cumsum(-1)
    targets = numbers[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    return places.clamp(max=weights.shape[-1] - 1)
