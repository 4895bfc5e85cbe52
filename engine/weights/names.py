"""The one set of names and shapes under which the decoder knows its weights.

Owns the list. The invariant: what a loader hands on holds exactly these tensors, each in its shape, so a
weight that is missing, misshapen or left over is found before the first step.
"""

import torch

from engine.models.config import ModelConfig
from kernels.grouped import GroupedMatrix

__all__ = ["Weights", "WeightsError", "check_weights", "expected_shapes"]

Weights = dict[str, torch.Tensor | GroupedMatrix]


class WeightsError(ValueError):
    """The weights do not fit the model that they claim to be."""


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape. Matrices are [outputs, inputs]."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm.weight": (hidden,),
        "q_proj.weight": (query, hidden),
        "k_proj.weight": (key, hidden),
        "v_proj.weight": (key, hidden),
        "o_proj.weight": (hidden, query),
        "mlp_norm.weight": (hidden,),
        "gate_proj.weight": (inner, hidden),
        "up_proj.weight": (inner, hidden),
        "down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {"q_proj.bias": (query,), "k_proj.bias": (key,), "v_proj.bias": (key,)}
    if config.output_bias:
        shapes["o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {"q_norm.weight": (config.head_dim,), "k_norm.weight": (config.head_dim,)}
    return shapes


def check_weights(config: ModelConfig, weights: Weights) -> None:
    """Raises WeightsError unless the weights are exactly the expected ones."""
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in weights:
            raise WeightsError(f"{config.family}: the weight {name} is missing")
        if tuple(weights[name].shape) != shape:
            raise WeightsError(
                f"{config.family}: {name} has the shape {tuple(weights[name].shape)}, not {shape}"
            )
    if unknown := sorted(weights.keys() - expected.keys()):
        raise WeightsError(f"{config.family}: the weight {unknown[0]} is not one that the decoder uses")
