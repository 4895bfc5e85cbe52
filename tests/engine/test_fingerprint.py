"""The fingerprint: the same for the same model, and another for whatever could change a block's bytes."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from engine.fingerprint import FINGERPRINT_BYTES, fingerprint
from engine.models.config import ModelConfig
from kernels.grouped import GroupedMatrix

CONFIG = ModelConfig(
    family="llama",
    vocab_size=11,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_length=64,
    rms_eps=1e-5,
    rope_theta=10000.0,
)
CHUNK = 1 << 18  # bytes that are summed together
PROGRAM = """
from tests.engine.test_fingerprint import mark, weights
print(mark(weights()).hex())
"""


def weights() -> dict[str, torch.Tensor]:
    """Two tensors; the larger takes more than one chunk and ends inside a word."""
    large = torch.arange(CHUNK + 4096 + 3, dtype=torch.int64).mul(2654435761).to(torch.uint8)
    return {"large": large, "small": torch.arange(12, dtype=torch.bfloat16).view(3, 4)}


def mark(
    tensors: dict[str, torch.Tensor],
    config: ModelConfig = CONFIG,
    block_size: int = 16,
    kv_dtype: torch.dtype = torch.bfloat16,
    layout_version: int = 1,
    products: str = "full",
) -> bytes:
    return fingerprint(
        config,
        tensors,
        products=products,
        block_size=block_size,
        kv_dtype=kv_dtype,
        layout_version=layout_version,
    )


def test_it_is_the_same_in_another_process() -> None:
    other = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert bytes.fromhex(other.stdout) == mark(weights())
    assert len(mark(weights())) == FINGERPRINT_BYTES


def test_neither_the_order_of_the_weights_nor_their_strides_matter() -> None:
    tensors = weights()

    shuffled = {"small": tensors["small"].t().contiguous().t(), "large": tensors["large"]}

    assert mark(shuffled) == mark(tensors)


@pytest.mark.parametrize("place", [0, 7, 8, CHUNK - 1, CHUNK, CHUNK + 4095, CHUNK + 4096, CHUNK + 4098])
@pytest.mark.parametrize("bit", [1, 128])
def test_every_bit_of_every_weight_matters(place: int, bit: int) -> None:
    changed = weights()

    changed["large"][place] ^= bit

    assert mark(changed) != mark(weights())


@pytest.mark.parametrize("part", ["codes", "scales", "minima"])
def test_every_part_of_a_grouped_weight_matters(part: str) -> None:
    codes = torch.zeros(2, 3, 16, dtype=torch.uint8)
    factors = torch.ones(2, 3, dtype=torch.float16)
    plain = GroupedMatrix(codes, factors, factors, 0)

    changed = replace(plain, **{part: getattr(plain, part) + 1})

    assert mark({"grouped": changed}) != mark({"grouped": plain})


def test_two_changes_do_not_cancel() -> None:
    """Top bits of words are what a sum modulo a power of two would lose."""
    changed = weights()

    changed["large"][[7, 15]] ^= 128

    assert mark(changed) != mark(weights())


def test_words_that_change_places_matter() -> None:
    changed = weights()

    changed["large"][:CHUNK] = changed["large"][:CHUNK].view(-1, 8).flip(0).flatten()

    assert mark(changed) != mark(weights())


@pytest.mark.parametrize(
    "change",
    [
        {"other": weights()["large"], "small": weights()["small"]},
        {"large": weights()["large"], "small": weights()["small"].view(4, 3)},
        {"large": weights()["large"], "small": weights()["small"].view(torch.float16)},
        {"large": weights()["large"]},
    ],
    ids=["name", "shape", "type", "missing"],
)
def test_names_shapes_and_types_of_weights_matter(change: dict[str, torch.Tensor]) -> None:
    assert mark(change) != mark(weights())


def test_what_is_not_in_the_weights_matters_too() -> None:
    small = {"small": weights()["small"]}

    marks = {
        mark(small),
        mark(small, config=replace(CONFIG, rope_theta=10001.0)),
        mark(small, config=replace(CONFIG, rope_divisors=(1.0,) * 8)),
        mark(small, config=replace(CONFIG, rms_eps=1e-6)),
        mark(small, block_size=32),
        mark(small, kv_dtype=torch.float32),
        mark(small, layout_version=2),
        mark(small, products="int8"),
    }

    assert len(marks) == 8
