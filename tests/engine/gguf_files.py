"""GGUF files that tests write: a container of given parts, and a whole tiny model."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from engine.gguf import GGMLType

LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Tensors = dict[str, tuple[GGMLType, tuple[int, ...], bytes]]  # name -> type, row-major shape, bytes


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case list():
            items = [_value(item) for item in value]
            kind = items[0][:4] if items else struct.pack("<I", 8)
            return (
                struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
            )
    raise TypeError(f"no GGUF type for {value!r}")


def gguf_bytes(metadata: dict[str, Any], tensors: Tensors, version: int = 3) -> bytes:
    """A container with every tensor aligned to 32 bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % 32) + data


def write_model(model: PreTrainedModel, path: Path) -> Path:
    """A model of the llama, qwen2 or qwen3 architecture in float32, rearranged as such files are."""
    family, config = model.config.model_type, model.config
    tensors: Tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            halves = weight.reshape(-1, 2, config.head_dim // 2, *weight.shape[1:])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        content = weight.contiguous().numpy().astype(np.float32).tobytes()
        tensors[_gguf_name(name)] = (GGMLType.F32, tuple(weight.shape), content)
    path.write_bytes(gguf_bytes(_metadata(family, config), tensors))
    return path


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{LLAMA_NAMES[part]}.{kind}"
    return f"{LLAMA_NAMES[stem]}.{kind}"


def _metadata(family: str, config: Any) -> dict[str, Any]:
    return {
        "general.architecture": family,
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.key_length": config.head_dim,
        f"{family}.attention.value_length": config.head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{family}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }


def as_bytes(values: Any, dtype: torch.dtype) -> bytes:
    """Numbers in the given type, as a file holds them."""
    return torch.tensor(values, dtype=dtype).view(torch.uint8).numpy().tobytes()
