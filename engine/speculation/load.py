"""What proposes tokens for an engine, made from its config."""

from dataclasses import replace
from typing import NamedTuple

import torch

from engine.kv_pool import KVPool
from engine.messages import EngineConfig
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.sampling.sampler import Sampler
from engine.speculation.draft import DraftProposer
from engine.speculation.ngram import NgramProposer
from engine.weights import Weights, load
from kernels import Kernels

__all__ = ["Draft", "load_draft", "make_proposer"]


class Draft(NamedTuple):
    """A draft model that is not built yet."""

    model: ModelConfig
    weights: Weights


def load_draft(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Draft | None:
    """The draft model that the config asks for, if it asks for one: another model, or the first layers of
    one.

    Raises ValueError or OSError when it cannot be read, or does not speak the model's tokens.
    """
    if config.speculation != "draft":
        return None
    draft, weights = load(config.draft_model or config.model, dtype, packed=config.products == "packed")
    if draft.vocab_size != model.vocab_size:
        raise ValueError(
            f"draft_model has {draft.vocab_size} tokens and the model {model.vocab_size}: a draft must speak "
            "the same ones"
        )
    num_layers = config.draft_layers or draft.num_layers
    if not 1 <= num_layers <= draft.num_layers:
        raise ValueError(f"draft_layers is {config.draft_layers}, but the draft has {draft.num_layers}")
    for name in [name for name in weights if _layer_of(name) >= num_layers]:
        del weights[name]
    return Draft(replace(draft, num_layers=num_layers), weights)


def make_proposer(
    config: EngineConfig, draft: Draft | None, pool: KVPool, kernels: Kernels, sampler: Sampler
) -> "DraftProposer | NgramProposer | None":
    """What proposes for the sequences whose blocks lie in `pool`. Takes the draft's weights, and memory."""
    match config.speculation:
        case "ngram":
            return NgramProposer()
        case "draft":
            assert draft is not None, "a draft was loaded"
            weights = {name: tensor.to(pool.device) for name, tensor in draft.weights.items()}
            draft_pool = KVPool(
                draft.model,
                pool.num_blocks,
                pool.block_size,
                dtype=pool.keys.dtype,
                device=pool.device,
                operations=kernels,
            )
            return DraftProposer(Decoder(draft.model, weights, kernels), draft_pool, pool, sampler)
        case _:
            return None


def _layer_of(name: str) -> int:
    """The layer that a weight belongs to; -1 for those of none."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "layers" else -1
