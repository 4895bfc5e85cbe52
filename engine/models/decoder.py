"""A Llama-shaped decoder over paged keys and values, driven by its config.

Owns the fused weights and what stands around the layers: embedding, angles, head. What a token may attend
to is an argument, and so is the memory of keys and values: a forward pass leaves no trace but what it writes
into the slots of its own tokens.
"""

import torch

from engine.batch import Batch
from engine.kv_pool import KVPool
from engine.models.config import ModelConfig
from engine.models.rope import inverse_frequencies, rotations
from engine.weights.names import Weights
from kernels import Kernels
from kernels.grouped import join_rows, lookup
from kernels.operations import Matrix
from kernels.stack import LayerWeights, StackShape

__all__ = ["Decoder"]


class Decoder:
    """Takes the weights: after construction the mapping that was given is empty. `stack` is the layers."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        self.config = config
        table = weights.pop("embed_tokens.weight")
        self._embed = lookup(table)
        final_norm = _take_tensor(weights, "norm.weight")
        shape = StackShape(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_eps=config.rms_eps,
        )
        # One layer at a time, so that two forms of no more than one exist at once.
        layers = (_take_layer(weights, index) for index in range(config.num_layers))
        self.stack = kernels.make_stack(kernels, layers, final_norm, shape)
        self._frequencies = inverse_frequencies(config).to(final_norm.device)
        self._head = kernels.linear(table if config.tied_embeddings else weights.pop("lm_head.weight"), None)

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """The hidden state of every token of the batch, normed for the head: [num_tokens, hidden_size].

        Writes keys and values of the batch's tokens to their slots.
        """
        angles = rotations(self._frequencies, batch.positions)
        return self.stack(self._embed(batch.token_ids), angles, batch, pool.keys, pool.values)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Each row's scores over the vocabulary: [num_rows, vocab_size] float32."""
        return self._head(hidden).float()


def _take_tensor(weights: Weights, name: str) -> torch.Tensor:
    tensor = weights.pop(name)
    assert isinstance(tensor, torch.Tensor), f"{name} is no matrix"
    return tensor


def _take_layer(weights: Weights, index: int) -> LayerWeights:
    """One layer's weights, out of the mapping and joined."""

    def take(name: str) -> torch.Tensor:
        return _take_tensor(weights, f"layers.{index}.{name}")

    def take_matrix(*names: str) -> Matrix:
        return join_rows([weights.pop(f"layers.{index}.{name}.weight") for name in names])

    def take_bias(*names: str) -> torch.Tensor | None:
        has_bias = f"layers.{index}.{names[0]}.bias" in weights
        return torch.cat([take(f"{name}.bias") for name in names]) if has_bias else None

    has_norms = f"layers.{index}.q_norm.weight" in weights
    attention, feed_forward = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
    return LayerWeights(
        input_norm=take("input_norm.weight"),
        qkv=take_matrix(*attention),
        qkv_bias=take_bias(*attention),
        query_norm=take("q_norm.weight") if has_norms else None,
        key_norm=take("k_norm.weight") if has_norms else None,
        output=take_matrix("o_proj"),
        output_bias=take_bias("o_proj"),
        mlp_norm=take("mlp_norm.weight"),
        gate_up=take_matrix(*feed_forward),
        gate_up_bias=take_bias(*feed_forward),
        down=take_matrix("down_proj"),
        down_bias=take_bias("down_proj"),
    )
