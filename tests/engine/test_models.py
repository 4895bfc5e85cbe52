"""The decoder against transformers' own logits, through the paged path."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import is_kernels_available

from engine.models.config import UnsupportedModel
from engine.models.decoder import Decoder
from engine.models.hf_config import config_from_hf
from engine.weights import load
from kernels import Kernels
from tests.engine.checkpoints import SHAPES, random_model, transformers_logits, write_checkpoint
from tests.engine.gguf_files import write_model
from tests.engine.paged import make_pool, run_in_chunks

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("llama", {"attention_bias": True, "rope_parameters": LLAMA3_ROPE}),
    ("llama", {"num_key_value_heads": 1, "rope_parameters": LINEAR_ROPE}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 128}),
    ("qwen2", {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 120}),
    ("qwen3", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 32, "attention_bias": True}),
]
PROMPT_LENGTHS, CHUNKS = [1, 16, 37, 90], [1, 5, 17, 64]


def random_prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(SHAPES["vocab_size"], (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


def assert_same_logits(path: Path, model: Any, kernels: Kernels) -> None:
    config, weights = load(path, torch.float32)
    decoder = Decoder(config, weights, kernels)
    prompts = random_prompts()

    found = run_in_chunks(decoder, make_pool(config, kernels, 20), prompts, CHUNKS)

    for prompt, logits in zip(prompts, found, strict=True):
        torch.testing.assert_close(logits, transformers_logits(model, prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "overrides"), MODELS)
def test_a_folder_gives_the_logits_of_transformers(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(family, **overrides)

    assert_same_logits(write_checkpoint(model, tmp_path), model, Kernels.cpu())


def test_the_reference_kernels_give_the_logits_of_transformers(tmp_path: Path) -> None:
    model = random_model("qwen3")

    assert_same_logits(write_checkpoint(model, tmp_path), model, Kernels.reference())


@pytest.mark.parametrize(
    ("family", "tied"), [("llama", False), ("llama", True), ("qwen2", True), ("qwen3", False)]
)
def test_a_gguf_file_gives_the_logits_of_transformers(family: str, tied: bool, tmp_path: Path) -> None:
    heads = {"hidden_size": 96} if family == "qwen2" else {}
    model = random_model(family, tie_word_embeddings=tied, **heads)

    assert_same_logits(write_model(model, tmp_path / "model.gguf"), model, Kernels.cpu())


def test_the_default_model_gives_the_logits_of_transformers(default_model_path: Path) -> None:
    config, weights = load(default_model_path, torch.float32)
    model = _default_in_transformers(config, weights)
    kernels = Kernels.cpu()
    prompt = [1, 4093, 198, 2683, 359, 253, 5356, 5646, 11173, 3365] * 6

    found = run_in_chunks(Decoder(config, weights, kernels), make_pool(config, kernels, 5), [prompt], [23])

    torch.testing.assert_close(found[0], transformers_logits(model, prompt), atol=5e-4, rtol=0)


def _default_in_transformers(config: Any, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    ).eval()
    parts = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        parts[name] = f"self_attn.{name}"
    for name in ("gate_proj", "up_proj", "down_proj"):
        parts[name] = f"mlp.{name}"
    state = {}
    for name, weight in weights.items():
        for ours, theirs in parts.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        state[f"model.{name}"] = weight.clone()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def test_a_sliding_window_bounds_the_context() -> None:
    raw = SHAPES | {"model_type": "mistral", "sliding_window": 64}

    assert config_from_hf(raw).context_length == 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "feed-forward"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "partly rotated"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_key_value_heads": 3}, "3 key heads"),
    ],
)
def test_a_model_that_cannot_be_run_exactly_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        config_from_hf(SHAPES | {"model_type": "llama"} | change)


def test_a_configuration_that_leaves_out_a_size_is_refused_by_name() -> None:
    raw = {key: value for key, value in SHAPES.items() if key != "vocab_size"}

    with pytest.raises(UnsupportedModel, match="vocab_size"):
        config_from_hf(raw | {"model_type": "llama"})


def test_transformers_does_not_take_our_kernels_for_its_own() -> None:
    assert "kernels" in sys.modules
    assert not is_kernels_available()
