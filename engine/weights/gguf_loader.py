"""A GGUF file as weights: its names become ours, and its rearrangements are undone.

Owns what is particular to the format: names, and the order of rows in which a rotating kernel of another
engine wants queries and keys.
"""

from dataclasses import replace
from pathlib import Path

import torch

from engine.gguf import GGUFFile
from engine.models.config import ModelConfig
from engine.models.gguf_config import config_from_gguf
from engine.weights.dequantize import dequantize
from engine.weights.grouped import is_grouped, read_grouped
from engine.weights.names import Weights
from kernels.grouped import GroupedMatrix

__all__ = ["load_gguf"]

TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_norm",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"


def load_gguf(path: Path, dtype: torch.dtype, *, packed: bool) -> tuple[ModelConfig, Weights]:
    """`packed`: matrices of 4 and 8 bits stay so. Raises GGUFError, UnsupportedModel or WeightsError."""
    file = GGUFFile(path)
    config = config_from_gguf(file)
    if ROPE_FACTORS in file.tensors:
        factors = dequantize(file, ROPE_FACTORS, torch.float32)
        config = replace(config, rope_divisors=tuple(factors.tolist()))
    weights: Weights = {}
    for name in file.tensors:
        if name != ROPE_FACTORS:
            stays = packed and is_grouped(file.tensors[name])
            weight = read_grouped(file, name) if stays else dequantize(file, name, dtype)
            weights[_canonical(name)] = _in_order(name, weight, config)
    return config, weights


def _canonical(name: str) -> str:
    """Names that are not known stay as they are, and are refused when all weights are checked."""
    match name.split("."):
        case ["blk", layer, part, kind] if part in LAYER_NAMES:
            return f"layers.{layer}.{LAYER_NAMES[part]}.{kind}"
        case [part, kind] if part in TOP_NAMES:
            return f"{TOP_NAMES[part]}.{kind}"
    return name


def _in_order(
    name: str, weight: torch.Tensor | GroupedMatrix, config: ModelConfig
) -> torch.Tensor | GroupedMatrix:
    """Files of the llama architecture interleave the two halves of each head's rows of queries and keys."""
    if config.family != "llama" or name.split(".")[-2] not in ("attn_q", "attn_k"):
        return weight
    places = torch.arange(weight.shape[0]).view(-1, config.head_dim // 2, 2).transpose(1, 2).flatten()
    return weight.rows(places) if isinstance(weight, GroupedMatrix) else weight[places]
