"""A folder with config.json and safetensors as weights, in one file or in shards named by an index.

Owns what is particular to that form: names and file names. Each tensor is converted as it is read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.models.config import ModelConfig
from engine.models.hf_config import config_from_hf
from engine.weights.names import Weights, WeightsError

__all__ = ["load_safetensors"]

LAYER_NAMES = {
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "mlp_norm",
}
UNUSED = "rotary_emb.inv_freq"  # old checkpoints keep what follows from their configuration


def load_safetensors(path: Path, dtype: torch.dtype) -> tuple[ModelConfig, Weights]:
    """Raises UnsupportedModel or WeightsError, and FileNotFoundError for a folder without config.json."""
    config = config_from_hf(_read_json(path / "config.json"))
    weights: Weights = {}
    for name, tensor in _tensors(path):
        if not name.endswith(UNUSED):
            weights[_canonical(name)] = tensor.to(dtype)
    if config.tied_embeddings:
        weights.pop("lm_head.weight", None)
    return config, weights


def _canonical(name: str) -> str:
    """Names that are not known stay as they are, and are refused when all weights are checked."""
    match name.removeprefix("model.").split("."):
        case ["layers", layer, "self_attn" | "mlp", part, kind]:
            return f"layers.{layer}.{part}.{kind}"
        case ["layers", layer, part, kind]:
            return f"layers.{layer}.{LAYER_NAMES.get(part, part)}.{kind}"
        case parts:
            return ".".join(parts)


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for shard in _shards(path):
        try:
            with safe_open(shard, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - the file is no mapping
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise WeightsError(f"{shard} cannot be read: {error}") from None


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return sorted({path / shard for shard in _read_json(index)["weight_map"].values()})
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise WeightsError(f"{path} holds no safetensors file")
    return shards


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise WeightsError(f"{path} is not JSON: {error}") from None
    return values
