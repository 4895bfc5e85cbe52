"""Whole blocks copied within a pool, and brought together outside it and back."""

from functools import partial
from typing import NamedTuple

import torch

from kernels.copy_blocks import copy_blocks, copy_blocks_reference
from kernels.move_blocks import (
    gather_blocks,
    gather_blocks_reference,
    scatter_blocks,
    scatter_blocks_reference,
)
from scripts.gpu_check import counts
from scripts.gpu_check.cases import EXACT, STREAMING_TARGET, Case, Trial, seeded, share_different
from scripts.gpu_check.shapes import Shapes

__all__ = ["block_cases"]


class _Inputs(NamedTuple):
    pool: torch.Tensor  # [2, num_layers, num_blocks, row_bytes] uint8
    sources: torch.Tensor  # [num_moved] int64
    targets: torch.Tensor  # [num_moved] int64, others
    staging: torch.Tensor  # [num_moved, 2, num_layers, row_bytes] uint8


def block_cases(shapes: Shapes) -> list[Case]:
    """Blocks of bfloat16 keys and values, in any order."""
    model, kernels = shapes.model, shapes.kernels
    row_bytes = model.num_kv_heads * model.head_dim * shapes.block_size * torch.bfloat16.itemsize
    block_bytes = 2 * model.num_layers * row_bytes
    return [
        Case(
            name=name,
            shape=f"{kernels.num_moved:,} blocks of {block_bytes:,} bytes",
            work=counts.moved(kernels.num_moved * block_bytes),
            bound=EXACT,
            make=partial(make, shapes, row_bytes),
            target=STREAMING_TARGET,
        )
        for name, make in (
            ("copy_blocks", _copy_blocks),
            ("gather_blocks", _gather_blocks),
            ("scatter_blocks", _scatter_blocks),
        )
    ]


def _make_inputs(shapes: Shapes, row_bytes: int, device: torch.device) -> _Inputs:
    kernels, num_layers = shapes.kernels, shapes.model.num_layers
    generator = seeded(device)

    def random_bytes(*shape: int) -> torch.Tensor:
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=device)

    order = torch.randperm(kernels.num_blocks, generator=generator, device=device)
    return _Inputs(
        pool=random_bytes(2, num_layers, kernels.num_blocks, row_bytes),
        sources=order[: kernels.num_moved].contiguous(),
        targets=order[kernels.num_moved : 2 * kernels.num_moved].contiguous(),
        staging=random_bytes(kernels.num_moved, 2, num_layers, row_bytes),
    )


def _copy_blocks(shapes: Shapes, row_bytes: int, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, row_bytes, device)
    pool = inputs.pool.flatten(0, 1)
    expected = pool.clone()
    copy_blocks_reference(expected, inputs.sources, inputs.targets)

    def run() -> torch.Tensor:
        copy_blocks(pool, inputs.sources, inputs.targets)
        return pool

    return Trial(run, lambda found: share_different(found, expected))


def _gather_blocks(shapes: Shapes, row_bytes: int, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, row_bytes, device)
    expected = torch.empty_like(inputs.staging)
    gather_blocks_reference(inputs.pool, inputs.sources, expected)

    def run() -> torch.Tensor:
        gather_blocks(inputs.pool, inputs.sources, inputs.staging)
        return inputs.staging

    return Trial(run, lambda found: share_different(found, expected))


def _scatter_blocks(shapes: Shapes, row_bytes: int, device: torch.device) -> Trial:
    inputs = _make_inputs(shapes, row_bytes, device)
    expected = inputs.pool.clone()
    scatter_blocks_reference(expected, inputs.targets, inputs.staging)

    def run() -> torch.Tensor:
        scatter_blocks(inputs.pool, inputs.targets, inputs.staging)
        return inputs.pool

    return Trial(run, lambda found: share_different(found, expected))
