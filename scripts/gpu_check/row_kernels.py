"""Norms and activations, row by row."""

from functools import partial

import torch

from kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference
from scripts.gpu_check import counts
from scripts.gpu_check.cases import (
    STREAMING_TARGET,
    Case,
    Trial,
    distance,
    seeded,
    worst,
)
from scripts.gpu_check.shapes import Shapes

__all__ = ["row_cases"]

DTYPE = torch.bfloat16


def row_cases(shapes: Shapes) -> list[Case]:
    """Norms of a model's rows and of wider ones, which are another kernel's, and the activation."""
    kernels, hidden, inner = shapes.kernels, shapes.model.hidden_size, shapes.model.intermediate_size
    eps = shapes.model.rms_eps
    cases = []
    for name, num_rows, size, target in (
        ("", kernels.num_tokens, hidden, STREAMING_TARGET),
        (", wide", kernels.num_wide_tokens, kernels.wide_size, None),
    ):
        for norm, count, make in (
            ("rms_norm", counts.rms_norm, _rms_norm),
            ("add_rms_norm", counts.add_rms_norm, _add_rms_norm),
        ):
            cases.append(
                Case(
                    name=norm + name,
                    shape=f"{num_rows:,} x {size:,}",
                    work=count(num_rows, size, itemsize=DTYPE.itemsize),
                    bound=kernels.bounds.rounded,
                    make=partial(make, num_rows, size, eps),
                    target=target,
                )
            )
    activation = Case(
        name="silu_and_mul",
        shape=f"{kernels.num_tokens:,} x {inner:,}",
        work=counts.silu_and_mul(kernels.num_tokens, inner, itemsize=DTYPE.itemsize),
        bound=kernels.bounds.rounded,
        make=partial(_silu_and_mul, kernels.num_tokens, inner),
        target=STREAMING_TARGET,
    )
    return [*cases, activation]


def _rms_norm(num_rows: int, size: int, eps: float, device: torch.device) -> Trial:
    generator = seeded(device)
    x = torch.randn(num_rows, size, generator=generator, device=device)
    weight = torch.randn(size, generator=generator, device=device).to(DTYPE)
    return Trial(
        run=lambda: rms_norm(x, weight, eps),
        error=lambda found: distance(found, rms_norm_reference(x, weight, eps)),
    )


def _add_rms_norm(num_rows: int, size: int, eps: float, device: torch.device) -> Trial:
    generator = seeded(device)
    x = torch.randn(num_rows, size, generator=generator, device=device).to(DTYPE)
    before = torch.randn(num_rows, size, generator=generator, device=device)
    weight = torch.randn(size, generator=generator, device=device).to(DTYPE)
    residual = before.clone()

    def error(found: torch.Tensor) -> float:
        expected = before.clone()
        normed = add_rms_norm_reference(x, expected, weight, eps)
        return worst(distance(found, normed), distance(residual, expected))

    return Trial(
        run=lambda: add_rms_norm(x, residual, weight, eps),
        error=error,
        reset=lambda: residual.copy_(before),
    )


def _silu_and_mul(num_rows: int, size: int, device: torch.device) -> Trial:
    gate_up = torch.randn(num_rows, 2 * size, generator=seeded(device), device=device).to(DTYPE)
    return Trial(
        run=lambda: silu_and_mul(gate_up),
        error=lambda found: distance(found, silu_and_mul_reference(gate_up)),
    )
