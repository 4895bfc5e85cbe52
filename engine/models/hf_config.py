"""A folder's config.json as a ModelConfig.

Owns the keys of that file, old and new spellings. Whatever a key may say that the decoder does not do is
refused here by name.
"""

from typing import Any

from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.rope import linear_divisors, llama3_divisors

__all__ = ["config_from_hf"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Raises UnsupportedModel for a model that the decoder cannot run exactly."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"models of type {family!r} are not run; these are: {', '.join(FAMILIES)}")
    _refuse_variants(family, raw)
    try:
        return _read(family, raw)
    except KeyError as missing:
        raise UnsupportedModel(f"{family}: config.json does not say {missing}") from None


def _read(family: str, raw: dict[str, Any]) -> ModelConfig:
    num_heads = raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or raw["hidden_size"] // num_heads
    theta, divisors = _rope(family, raw, head_dim)
    attention_bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        context_length=_context_length(raw),
        rms_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_divisors=divisors,
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        qk_norm=family == "qwen3",
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


def _refuse_variants(family: str, raw: dict[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{family} with the activation {raw['hidden_act']!r} is not run; silu is")
    if raw.get("mlp_bias"):
        raise UnsupportedModel(f"{family} with biases in its feed-forward layers is not run")
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(
            f"{family} quantized by {method!r} is not run; GGUF files and plain weights are"
        )


def _rope(family: str, raw: dict[str, Any], head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel(f"{family} with partly rotated heads is not run")
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            return theta, None
        case "linear":
            return theta, linear_divisors(head_dim, rope["factor"])
        case "llama3":
            return theta, llama3_divisors(theta, head_dim, rope)
        case unknown:
            raise UnsupportedModel(
                f"{family} with rope scaling {unknown!r} is not run; default, linear and llama3 are"
            )


def _context_length(raw: dict[str, Any]) -> int:
    """Up to its window's length a windowed model attends to everything, so there it is run exactly."""
    trained: int = raw["max_position_embeddings"]
    window = raw.get("sliding_window")
    windowed = raw.get("use_sliding_window", raw["model_type"] == "mistral")
    return min(trained, window) if window and windowed else trained
