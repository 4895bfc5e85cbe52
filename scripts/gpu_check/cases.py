"""A kernel beside its reference: what a case is, and how far two results are apart."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scripts.gpu_check.clock import nothing
from scripts.gpu_check.counts import Work

__all__ = [
    "EXACT",
    "STREAMING_TARGET",
    "Case",
    "NotHere",
    "Trial",
    "distance",
    "seeded",
    "share_different",
    "worst",
]

EXACT = 0.0
STREAMING_TARGET = 0.85  # of the rate of copies, for what only moves


class NotHere(Exception):
    """This device cannot run a case. The message says why."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A case with its tensors in place."""

    run: Callable[[], torch.Tensor]  # launches the kernel; returns what it writes
    error: Callable[[torch.Tensor], float]  # of what was written, against the reference
    reset: Callable[[], object] = nothing  # before another run, for what changes its own input


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that runs on a GPU, and may only be timed where it is right."""

    name: str
    shape: str
    work: Work
    bound: float  # of the error
    make: Callable[[torch.device], Trial]  # raises NotHere
    target: float | None = None  # of its floor over its time


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of two results as a whole, relative to the expected one. NaN where either holds it."""
    found, expected = found.float(), expected.float()
    apart = (found - expected).norm().item()
    return float(apart / expected.norm().clamp(min=1e-30).item())


def worst(*errors: float) -> float:
    """The greatest, and NaN if any is: nothing is right then."""
    return math.nan if any(math.isnan(error) for error in errors) else max(errors)


def share_different(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The share of numbers that are not the very same."""
    assert found.shape == expected.shape, "two results of one kind"
    return (found != expected).float().mean().item()


def seeded(device: torch.device, seed: int = 1) -> torch.Generator:
    """The same numbers every time."""
    return torch.Generator(device).manual_seed(seed)
