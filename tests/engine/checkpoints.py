"""Tiny random models: checkpoints on disk, and what transformers computes with them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SHAPES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
}


def random_model(family: str, **overrides: Any) -> PreTrainedModel:
    """A model whose every weight matters, biases and norms included."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **(SHAPES | overrides))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def write_checkpoint(model: PreTrainedModel, folder: Path, max_shard_size: str = "1GB") -> Path:
    """The model as a folder of safetensors."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


@torch.inference_mode()
def transformers_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits of every position: [num_tokens, vocab_size]."""
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits
