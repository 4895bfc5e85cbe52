"""Weights: each stored format number by number, and each way that a checkpoint can be wrong."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.gguf import GGMLType, GGUFFile
from engine.models.config import UnsupportedModel
from engine.weights import WeightsError, load
from engine.weights.dequantize import dequantize
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.gguf_files import as_bytes, gguf_bytes, write_model

NIBBLES = [(7 * index + 3) % 16 for index in range(32)]
PACKED = bytes(NIBBLES[index] | NIBBLES[index + 16] << 4 for index in range(16))
SIGNED = [(5 * index) % 256 - 128 for index in range(32)]
PLAIN = [float(index) / 4 - 3 for index in range(32)]
FORMATS = [
    (GGMLType.F32, as_bytes(PLAIN, torch.float32), PLAIN),
    (GGMLType.F16, as_bytes(PLAIN, torch.float16), PLAIN),
    (GGMLType.BF16, as_bytes(PLAIN, torch.bfloat16), PLAIN),
    (GGMLType.Q4_0, struct.pack("<e", 0.5) + PACKED, [0.5 * (nibble - 8) for nibble in NIBBLES]),
    (GGMLType.Q4_1, struct.pack("<ee", 0.5, -2.0) + PACKED, [0.5 * nibble - 2.0 for nibble in NIBBLES]),
    (GGMLType.Q8_0, struct.pack("<e32b", 0.25, *SIGNED), [0.25 * number for number in SIGNED]),
]


@pytest.mark.parametrize(
    ("kind", "content", "expected"), FORMATS, ids=lambda value: getattr(value, "name", "")
)
def test_a_format_gives_these_numbers(
    kind: GGMLType, content: bytes, expected: list[float], tmp_path: Path
) -> None:
    # The rows go past one chunk, so that where a chunk begins is tested as well.
    num_rows = (1 << 18) // 32 + 3
    path = tmp_path / "file"
    path.write_bytes(gguf_bytes({}, {"tensor": (kind, (num_rows, 32), content * num_rows)}))

    found = dequantize(GGUFFile(path), "tensor", torch.float32)

    assert torch.equal(found, torch.tensor(expected).expand(num_rows, 32))


def test_a_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gguf_bytes({}, {"tensor": (GGMLType.Q2_K, (1, 256), bytes(84))}))

    with pytest.raises(WeightsError, match="Q2_K"):
        dequantize(GGUFFile(path), "tensor", torch.float32)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_both_kinds_of_files_hold_the_same_weights(family: str, tmp_path: Path) -> None:
    model = random_model(family, **({"hidden_size": 96} if family == "qwen2" else {}))

    _, from_folder = load(write_checkpoint(model, tmp_path / "folder"), torch.float32)
    _, from_file = load(write_model(model, tmp_path / "file.gguf"), torch.float32)

    assert from_folder.keys() == from_file.keys()
    for name, weight in from_folder.items():
        assert torch.equal(weight, from_file[name]), name


def test_shards_are_read_like_one_file(tmp_path: Path) -> None:
    model = random_model("llama")

    _, whole = load(write_checkpoint(model, tmp_path / "whole"), torch.float32)
    _, sharded = load(write_checkpoint(model, tmp_path / "sharded", max_shard_size="20KB"), torch.float32)

    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_weights_come_in_the_type_that_was_asked_for(tmp_path: Path) -> None:
    _, weights = load(write_checkpoint(random_model("llama"), tmp_path), torch.bfloat16)

    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_frequency_factors_of_a_file_become_divisors(tmp_path: Path) -> None:
    path = write_model(random_model("llama"), tmp_path / "model.gguf")
    plain = GGUFFile(path)
    tensors = {
        name: (tensor.type, tensor.shape, plain.data(name).tobytes())
        for name, tensor in plain.tensors.items()
    }
    factors = [1.0 + index for index in range(12)]
    tensors["rope_freqs.weight"] = (GGMLType.F32, (12,), as_bytes(factors, torch.float32))
    path.write_bytes(gguf_bytes(plain.metadata, tensors))

    config, _ = load(path, torch.float32)

    assert config.rope_divisors == tuple(factors)


def _broken(folder: Path, change: str) -> Path:
    """A checkpoint with one fault."""
    write_checkpoint(random_model("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    match change:
        case "missing":
            del weights["model.layers.1.mlp.up_proj.weight"]
        case "misshapen":
            weights["model.norm.weight"] = torch.ones(3)
        case "unknown":
            weights["model.layers.0.self_attn.sinks"] = torch.ones(4)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("missing", "layers.1.up_proj.weight is missing"),
        ("misshapen", "norm.weight has the shape"),
        ("unknown", "sinks"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=named):
        load(_broken(tmp_path, change), torch.float32)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    config = random_model("llama").config
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))

    with pytest.raises(WeightsError, match="no safetensors"):
        load(tmp_path, torch.float32)


def test_a_truncated_shard_is_a_weights_error(tmp_path: Path) -> None:
    write_checkpoint(random_model("llama"), tmp_path)
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])

    with pytest.raises(WeightsError, match="cannot be read"):
        load(tmp_path, torch.float32)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({}, "None"),
        ({"general.architecture": "llama", "llama.expert_count": 8}, "mixture of experts"),
        ({"general.architecture": "llama"}, "llama.embedding_length"),
    ],
)
def test_a_file_that_cannot_be_run_exactly_is_refused_by_name(
    metadata: dict[str, object], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata, {}))

    with pytest.raises(UnsupportedModel, match=named):
        load(path, torch.float32)
