"""Penalties on logits, and tokens drawn from them."""

from functools import partial
from typing import NamedTuple

import torch

from kernels.adjust_logits import adjust_logits, adjust_logits_reference
from kernels.sample import draw, draw_reference, sample, weigh, weigh_reference
from kernels.sampling_cut import find_cuts, keep_reference
from scripts.gpu_check import counts
from scripts.gpu_check.cases import EXACT, Case, Trial, distance, seeded, share_different
from scripts.gpu_check.shapes import Shapes

__all__ = ["sampling_cases"]

_EXPONENTIAL_BOUND = 1e-5  # a GPU's own exponential
_FLOAT_BOUND = 1e-6


class _Inputs(NamedTuple):
    """As `kernels.sample` has them. Rows of every kind: greedy ones, free ones, and each filter."""

    logits: torch.Tensor
    temperatures: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    numbers: torch.Tensor


def sampling_cases(shapes: Shapes) -> list[Case]:
    """`sample` whole, its three launches one by one, and the edits before it."""
    kernels = shapes.kernels
    num_rows, vocab_size = kernels.num_rows, kernels.vocab_size
    draws = [
        Case(
            name=name,
            shape=f"{num_rows:,} x {vocab_size:,}",
            work=counts.sampling(num_rows, vocab_size, num_passes=num_passes),
            bound=bound,
            make=partial(make, shapes),
        )
        for name, make, bound, num_passes in (
            ("weigh", _weigh, _EXPONENTIAL_BOUND, 2),
            ("find_cuts", _find_cuts, EXACT, 1),
            ("draw", _draw, EXACT, 1),
            ("sample", _sample, EXACT, 1),
        )
    ]
    edits = Case(
        name="adjust_logits",
        shape=f"{kernels.num_edits:,} edits",
        work=counts.adjust_logits(kernels.num_edits),
        bound=_FLOAT_BOUND,
        make=partial(_adjust_logits, shapes),
    )
    return [*draws, edits]


def _make_inputs(shapes: Shapes, device: torch.device) -> _Inputs:
    num_rows, vocab_size = shapes.kernels.num_rows, shapes.kernels.vocab_size
    generator = seeded(device)

    def every(*choices: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([choices[row % len(choices)] for row in range(num_rows)], dtype=dtype).to(device)

    return _Inputs(
        logits=3 * torch.randn(num_rows, vocab_size, generator=generator, device=device),
        temperatures=every(0.0, 0.7, 1.0, 1.3, dtype=torch.float32),
        top_k=every(vocab_size, 50, vocab_size, dtype=torch.int32),
        top_p=every(1.0, 0.9, dtype=torch.float64),
        min_p=every(0.0, 0.0, 0.0, 0.0, 0.05, dtype=torch.float64),
        numbers=torch.rand(num_rows, dtype=torch.float64, generator=generator, device=device),
    )


def _weigh(shapes: Shapes, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, device)
    weights = inputs.logits.clone()

    def run() -> torch.Tensor:
        weigh(weights, inputs.temperatures)
        return weights

    return Trial(
        run,
        lambda found: distance(found, weigh_reference(inputs.logits, inputs.temperatures)),
        lambda: weights.copy_(inputs.logits),
    )


def _find_cuts(shapes: Shapes, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, device)
    weights = weigh_reference(inputs.logits, inputs.temperatures)
    kept = keep_reference(weights, inputs.top_k, inputs.top_p, inputs.min_p)

    def run() -> torch.Tensor:
        return torch.stack(find_cuts(weights, inputs.top_k, inputs.top_p, inputs.min_p))

    return Trial(run, lambda found: share_different(_kept_by(weights, *found), kept))


def _kept_by(weights: torch.Tensor, cut: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """As `kernels.sampling_cut` has it."""
    bits, ids = weights.view(torch.int32), torch.arange(weights.shape[1], device=weights.device)
    return (bits > cut[:, None]) | ((bits == cut[:, None]) & (ids < end[:, None]))


def _draw(shapes: Shapes, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, device)
    weights = weigh_reference(inputs.logits, inputs.temperatures)
    cuts = find_cuts(weights, inputs.top_k, inputs.top_p, inputs.min_p)
    expected = draw_reference(weights, _kept_by(weights, *cuts), inputs.numbers)
    return Trial(lambda: draw(weights, *cuts, inputs.numbers), lambda found: share_different(found, expected))


def _sample(shapes: Shapes, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, device)
    logits = inputs.logits.clone()

    def run() -> torch.Tensor:
        return sample(logits, inputs.temperatures, inputs.top_k, inputs.top_p, inputs.min_p, inputs.numbers)

    def error(found: torch.Tensor) -> float:
        """Against what its own weights say, which are another case's: nearly equal ones draw differently."""
        top_k = inputs.top_k.masked_fill(inputs.temperatures == 0, 1)
        kept = keep_reference(logits, top_k, inputs.top_p, inputs.min_p)
        return share_different(found, draw_reference(logits, kept, inputs.numbers))

    return Trial(run, error, lambda: logits.copy_(inputs.logits))


def _adjust_logits(shapes: Shapes, device: torch.device) -> Trial:
    inputs, num_edits = _make_inputs(shapes, device), shapes.kernels.num_edits
    generator = seeded(device, 2)
    flat = torch.randperm(inputs.logits.numel(), generator=generator, device=device)[:num_edits]
    places = torch.stack((flat // shapes.kernels.vocab_size, flat % shapes.kernels.vocab_size), dim=1).int()
    amounts = torch.rand(num_edits, 3, generator=generator, device=device) + 0.5
    expected, logits = inputs.logits.clone(), inputs.logits.clone()
    adjust_logits_reference(expected, places, amounts)

    def run() -> torch.Tensor:
        adjust_logits(logits, places, amounts)
        return logits

    return Trial(run, lambda found: distance(found, expected), lambda: logits.copy_(inputs.logits))
