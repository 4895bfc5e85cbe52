"""Packed formats: the vectorized readers against one number at a time, and whole models stored in them."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.gguf import PACKINGS, GGMLType, GGUFFile
from engine.weights import load
from engine.weights.dequantize import dequantize
from tests.engine.checkpoints import random_model
from tests.engine.gguf_files import Tensors, as_bytes, gguf_bytes, write_model
from tests.engine.gguf_quants import HALVES, VALUES, random_groups, scalar_values

Stored = tuple[GGMLType, tuple[int, ...], bytes]

NUM_DISTINCT = 7  # groups of a matrix; no row's length divides by it

# One group whose byte i is (37 * i + 11) % 256, but for its float16 numbers, which are these; and some of the
# numbers that it stands for, as an independent reader of the format gave them.
GOLDEN = [
    (
        GGMLType.Q5_0,
        [0.5],
        {0: 4.5, 1: -1.0, 7: -2.0, 8: -7.5, 15: -6.0, 16: 7.0, 17: 0.0, 24: -7.5, 31: 0.5},
    ),
    (
        GGMLType.Q5_1,
        [0.5, -2],
        {0: 7.5, 1: 10.0, 7: 9.0, 8: 3.5, 15: 13.0, 16: 7.5, 17: 0.5, 24: 0.5, 31: 0.5},
    ),
    (
        GGMLType.Q4_K,
        [0.5, 0.25],
        {0: 157.75, 1: -12.75, 31: 80.25, 32: 4, 47: 10, 100: 47.5, 128: 211.5, 255: 24.25},
    ),
    (
        GGMLType.Q5_K,
        [0.5, 0.25],
        {0: 405.75, 31: 80.25, 32: 56, 47: 30, 100: 117.5, 127: -1.5, 160: 82.5, 255: 54.25},
    ),
    (
        GGMLType.Q6_K,
        [0.25],
        {0: -357.75, 1: 424, 31: -24, 47: -52.5, 100: 630.75, 127: 375, 160: 167.75, 255: -15},
    ),
]


def _write(path: Path, tensors: Tensors) -> GGUFFile:
    path.write_bytes(gguf_bytes({}, tensors))
    return GGUFFile(path)


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.name)
def test_every_number_is_the_one_that_its_format_defines(kind: GGMLType, tmp_path: Path) -> None:
    num_elements, _ = PACKINGS[kind]
    content = random_groups(kind, 24, seed=3)

    found = dequantize(
        _write(tmp_path / "file", {"tensor": (kind, (12, 2 * num_elements), content)}),
        "tensor",
        torch.float32,
    )

    assert torch.equal(found.view(24, num_elements), torch.from_numpy(scalar_values(kind, content)))


@pytest.mark.parametrize(("kind", "halves", "expected"), GOLDEN, ids=lambda value: getattr(value, "name", ""))
def test_known_bytes_give_known_numbers(
    kind: GGMLType, halves: list[float], expected: dict[int, float], tmp_path: Path
) -> None:
    num_elements, num_bytes = PACKINGS[kind]
    group = bytearray((37 * index + 11) % 256 for index in range(num_bytes))
    for place, half in zip(HALVES[kind], halves, strict=True):
        group[place : place + 2] = as_bytes([half], torch.float16)

    file = _write(tmp_path / "file", {"tensor": (kind, (1, num_elements), bytes(group))})

    row = dequantize(file, "tensor", torch.float32)[0].tolist()
    assert {index: row[index] for index in expected} == expected


def test_rows_past_one_chunk_are_read_from_where_they_lie(tmp_path: Path) -> None:
    num_rows = (1 << 18) // 256 + 3
    content = random_groups(GGMLType.Q6_K, 3, seed=5)
    repeated = (content * num_rows)[: 210 * num_rows]

    file = _write(tmp_path / "file", {"tensor": (GGMLType.Q6_K, (num_rows, 256), repeated)})

    expected = torch.from_numpy(scalar_values(GGMLType.Q6_K, content))
    assert torch.equal(
        dequantize(file, "tensor", torch.float32), expected[torch.arange(num_rows).remainder(3)]
    )


def _in_both_forms(kind: GGMLType, shape: tuple[int, ...], seed: int) -> tuple[Stored, Stored]:
    """A matrix of a few groups that repeat, packed and as floats."""
    num_groups = prod(shape) // PACKINGS[kind].num_elements
    content = random_groups(kind, NUM_DISTINCT, seed)
    values = scalar_values(kind, content)[np.arange(num_groups) % NUM_DISTINCT]
    repeated = (content * num_groups)[: num_groups * PACKINGS[kind].num_bytes]
    return (kind, shape, repeated), (GGMLType.F32, shape, values.tobytes())


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.name)
def test_a_model_in_a_packed_format_is_the_same_model_as_in_floats(kind: GGMLType, tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    plain = GGUFFile(write_model(random_model("llama", **shape), tmp_path / "plain.gguf"))
    packed: Tensors = {}
    widened: Tensors = {}
    for name, tensor in plain.tensors.items():
        packed[name] = widened[name] = (tensor.type, tensor.shape, plain.data(name).tobytes())
        if len(tensor.shape) == 2:
            packed[name], widened[name] = _in_both_forms(kind, tensor.shape, seed=len(packed))
    for form, tensors in (("packed", packed), ("widened", widened)):
        (tmp_path / form).write_bytes(gguf_bytes(plain.metadata, tensors))

    config, weights = load(tmp_path / "packed", torch.float32)

    expected_config, expected = load(tmp_path / "widened", torch.float32)
    assert config == expected_config
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
