"""Weights: from a file or folder to tensors under one set of names. Knows no device and no forward pass."""

from pathlib import Path

import torch

from engine.models.config import ModelConfig
from engine.weights.gguf_loader import load_gguf
from engine.weights.names import Weights, WeightsError, check_weights
from engine.weights.safetensors_loader import load_safetensors

__all__ = ["Weights", "WeightsError", "load"]


def load(path: str | Path, dtype: torch.dtype) -> tuple[ModelConfig, Weights]:
    """Read a GGUF file, or a folder with config.json and safetensors.

    Raises UnsupportedModel, GGUFError, WeightsError, or OSError when nothing can be read there.
    """
    path = Path(path)
    config, weights = (load_safetensors if path.is_dir() else load_gguf)(path, dtype)
    check_weights(config, weights)
    return config, weights
