"""Rotating queries and keys, and storing keys and values: in the model's type and in 8 bits."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from engine.models.config import ModelConfig
from engine.models.rope import inverse_frequencies, rotations
from kernels.norm_rope_store_kv import norm_rope_store_kv, norm_rope_store_kv_reference
from kernels.rope_store_fp8 import norm_rope_store_fp8, rope_store_fp8, rope_store_fp8_reference
from kernels.rope_store_kv import rope_store_kv, rope_store_kv_reference
from scripts.gpu_check import counts
from scripts.gpu_check.cases import (
    STREAMING_TARGET,
    Case,
    NotHere,
    Trial,
    distance,
    seeded,
    worst,
)
from scripts.gpu_check.shapes import Shapes

__all__ = ["EIGHT_BITS", "refuse_eight_bits", "store_cases"]

DTYPE, EIGHT_BITS = torch.bfloat16, torch.float8_e4m3fn
_SCALES = 0.005, 0.5  # of keys and values in 8 bits; the first takes some keys past the type's limit
_FIRST_WITH_EIGHT_BITS = (8, 9)


class _Inputs(NamedTuple):
    qkv: torch.Tensor
    norms: tuple[torch.Tensor, torch.Tensor, float]
    angles: tuple[torch.Tensor, torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor


_Store = Callable[[_Inputs, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes inputs and the pools to store in; gives the queries."""


def store_cases(shapes: Shapes) -> list[Case]:
    """One prompt's tokens, over blocks in any order; one token in eight is padding."""
    stores: list[tuple[str, _Store, _Store, torch.dtype, bool]] = [
        ("rope_store_kv", _plain, _plain_reference, DTYPE, False),
        ("norm_rope_store_kv", _normed, _normed_reference, DTYPE, True),
        ("rope_store_fp8", _plain_fp8, _plain_fp8_reference, EIGHT_BITS, False),
        ("norm_rope_store_fp8", _normed_fp8, _normed_fp8_reference, EIGHT_BITS, True),
    ]
    heads, num_tokens = counts.Heads.of(shapes.model), shapes.kernels.num_tokens
    bounds = shapes.kernels.bounds
    return [
        Case(
            name=name,
            shape=f"{num_tokens:,} tokens",
            work=counts.rope_store(
                num_tokens,
                num_tokens - len(_padding(num_tokens)),
                heads,
                itemsize=DTYPE.itemsize,
                pool_itemsize=dtype.itemsize,
                has_norms=has_norms,
            ),
            bound=bounds.eight_bits if dtype == EIGHT_BITS else bounds.rounded,
            make=partial(_make, shapes, store, reference, dtype),
            target=STREAMING_TARGET,
        )
        for name, store, reference, dtype, has_norms in stores
    ]


def refuse_eight_bits(device: torch.device) -> None:
    """Raise NotHere on a GPU without this type."""
    if device.type != "cuda":
        return
    if torch.version.hip is not None:
        raise NotHere("its 8-bit type is another one")
    if torch.cuda.get_device_capability(device) < _FIRST_WITH_EIGHT_BITS:
        raise NotHere("it has no floats of 8 bits")


def _make(
    shapes: Shapes, store: _Store, reference: _Store, dtype: torch.dtype, device: torch.device
) -> Trial:
    if dtype == EIGHT_BITS:
        refuse_eight_bits(device)
    inputs = _make_inputs(shapes, dtype, device)
    keys, values = inputs.keys.clone(), inputs.values.clone()

    def error(found: torch.Tensor) -> float:
        expected = inputs.keys.clone(), inputs.values.clone()
        query = reference(inputs, *expected)
        return worst(distance(found, query), distance(keys, expected[0]), distance(values, expected[1]))

    return Trial(run=lambda: store(inputs, keys, values), error=error)


def _make_inputs(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> _Inputs:
    model, num_tokens, size = shapes.model, shapes.kernels.num_tokens, shapes.block_size
    generator = seeded(device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(DTYPE)

    num_blocks = -(-num_tokens // size) + 1
    positions = torch.arange(num_tokens, dtype=torch.int32, device=device)
    table = torch.randperm(num_blocks, generator=generator, device=device)
    slots = table[positions.long() // size] * size + positions % size
    slots[list(_padding(num_tokens))] = -1
    return _Inputs(
        qkv=random(num_tokens, (model.num_heads + 2 * model.num_kv_heads) * model.head_dim),
        norms=(random(model.head_dim), random(model.head_dim), model.rms_eps),
        angles=_angles(model, positions),
        keys=random(num_blocks, model.num_kv_heads, model.head_dim, size).to(dtype),
        values=random(num_blocks, model.num_kv_heads, size, model.head_dim).to(dtype),
        slots=slots.int(),
    )


def _padding(num_tokens: int) -> range:
    """Tokens that are not stored."""
    return range(3, num_tokens, 8)


def _angles(model: ModelConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rotations(inverse_frequencies(model).to(positions.device), positions)


def _plain(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return rope_store_kv(inputs.qkv, *inputs.angles, keys, values, inputs.slots)


def _plain_reference(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return rope_store_kv_reference(inputs.qkv, *inputs.angles, keys, values, inputs.slots)


def _normed(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return norm_rope_store_kv(inputs.qkv, inputs.norms, inputs.angles, keys, values, inputs.slots)


def _normed_reference(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return norm_rope_store_kv_reference(inputs.qkv, inputs.norms, inputs.angles, keys, values, inputs.slots)


def _plain_fp8(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return rope_store_fp8(inputs.qkv, inputs.angles, (keys, values, *_SCALES), inputs.slots)


def _plain_fp8_reference(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    pool = (keys, values, *_SCALES)
    return rope_store_fp8_reference(inputs.qkv, None, inputs.angles, pool, inputs.slots)


def _normed_fp8(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return norm_rope_store_fp8(
        inputs.qkv, inputs.norms, inputs.angles, (keys, values, *_SCALES), inputs.slots
    )


def _normed_fp8_reference(inputs: _Inputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    pool = (keys, values, *_SCALES)
    return rope_store_fp8_reference(inputs.qkv, inputs.norms, inputs.angles, pool, inputs.slots)
