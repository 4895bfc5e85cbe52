"""A GGUF file's metadata as a ModelConfig.

Owns the metadata keys that describe a model's shape. Frequency factors that the file keeps as a tensor
are the loader's to add.
"""

from typing import Any

from engine.gguf import GGUFFile
from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.rope import linear_divisors

__all__ = ["config_from_gguf"]

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Raises UnsupportedModel for a model that the decoder cannot run exactly."""
    family = file.metadata.get("general.architecture")
    if family not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file.path} holds a model of architecture {family!r}; these are run: {', '.join(ARCHITECTURES)}"
        )
    fields = _Fields(file, family)
    if fields.get("expert_count", 0):
        raise UnsupportedModel(f"{file.path} holds a mixture of experts, which is not run")
    hidden_size, num_heads = fields.require("embedding_length"), fields.require("attention.head_count")
    if isinstance(num_heads, list):
        raise UnsupportedModel(f"{file.path} has layers with different numbers of heads, which is not run")
    head_dim = fields.get("attention.key_length", hidden_size // num_heads)
    _refuse_variants(file, fields, head_dim)
    context, window = fields.require("context_length"), fields.get("attention.sliding_window", 0)
    return ModelConfig(
        family=family,
        vocab_size=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        hidden_size=hidden_size,
        intermediate_size=fields.require("feed_forward_length"),
        num_layers=fields.require("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.get("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_length=min(context, window) if window else context,
        rms_eps=fields.require("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.get("rope.freq_base", 10000.0),
        rope_divisors=_divisors(file, fields, head_dim),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=family == "qwen3",
        tied_embeddings="output.weight" not in file.tensors,
    )


class _Fields:
    """The metadata under the architecture's prefix."""

    def __init__(self, file: GGUFFile, family: str) -> None:
        self._file = file
        self._family = family

    def get(self, key: str, default: Any) -> Any:
        return self._file.metadata.get(f"{self._family}.{key}", default)

    def require(self, key: str) -> Any:
        value = self.get(key, None)
        if value is None:
            raise UnsupportedModel(f"{self._file.path} does not say {self._family}.{key}")
        return value


def _refuse_variants(file: GGUFFile, fields: _Fields, head_dim: int) -> None:
    if fields.get("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{file.path} rotates only a part of each head, which is not run")
    if fields.get("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{file.path} has keys and values of different sizes, which is not run")


def _divisors(file: GGUFFile, fields: _Fields, head_dim: int) -> tuple[float, ...] | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return linear_divisors(head_dim, fields.require("rope.scaling.factor"))
    raise UnsupportedModel(f"{file.path} has rope scaling {kind!r}, which is not run; none and linear are")
