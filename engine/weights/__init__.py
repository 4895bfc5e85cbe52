"""Weights: from a file or folder to tensors under one set of names. Knows no device and no forward pass."""

from pathlib import Path

import torch

from engine.models.config import ModelConfig
from engine.weights.gguf_loader import load_gguf
from engine.weights.names import Weights, WeightsError, check_weights
from engine.weights.safetensors_loader import load_safetensors

__all__ = ["Weights", "WeightsError", "load"]


def load(path: str | Path, dtype: torch.dtype, *, packed: bool = False) -> tuple[ModelConfig, Weights]:
    """Read a GGUF file, or a folder with config.json and safetensors.

    All tensors are of `dtype`. `packed` leaves matrices that a file has in groups of 4 or 8 bits as they are.

    Raises UnsupportedModel, GGUFError, WeightsError, or OSError when nothing can be read there.
    """
    path = Path(path)
    if path.is_dir():
        config, weights = load_safetensors(path, dtype)
    else:
        config, weights = load_gguf(path, dtype, packed=packed)
    check_weights(config, weights)
    return config, weights
