"""A Llama-shaped decoder over paged keys and values, driven by its config.

Owns the fused weights and the order of the operations. What a token may attend to is an argument, and so is the
memory of keys and values: a forward pass leaves no trace but what it writes into the slots of its own tokens.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch.nn.functional import embedding, linear

from engine.batch import Batch
from engine.kv_pool import KVPool
from engine.models.config import ModelConfig
from engine.models.rope import inverse_frequencies, rotations
from engine.weights.names import Weights
from kernels import Kernels

__all__ = ["Decoder"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, fused where one product serves for several."""

    input_norm: torch.Tensor
    qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor  # [hidden_size, num_heads * head_dim]
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 * intermediate_size, hidden_size]
    down: torch.Tensor  # [hidden_size, intermediate_size]


class Decoder:
    """Takes the weights apart: after construction the mapping that was given is empty."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        self.config = config
        self._kernels = kernels
        self._embedding = weights.pop("embed_tokens.weight")
        self._frequencies = inverse_frequencies(config).to(self._embedding.device)
        self._layers = [_fuse_layer(weights, index) for index in range(config.num_layers)]
        self._final_norm = weights.pop("norm.weight")
        self._head = self._embedding if config.tied_embeddings else weights.pop("lm_head.weight")

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """The hidden state of every token of the batch, normed for the head: [num_tokens, hidden_size].

        Writes keys and values of the batch's tokens to their slots.
        """
        kernels, eps = self._kernels, self.config.rms_eps
        angles = rotations(self._frequencies, batch.positions)
        residual = embedding(batch.token_ids, self._embedding).float()
        next_norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        hidden = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for layer, (keys, values), next_norm in zip(self._layers, pool.layers, next_norms, strict=True):
            attended = self._attend(layer, hidden, angles, batch, (keys, values))
            hidden = kernels.add_rms_norm(attended, residual, layer.mlp_norm, eps)
            gated = kernels.silu_and_mul(linear(hidden, layer.gate_up))
            hidden = kernels.add_rms_norm(linear(gated, layer.down), residual, next_norm, eps)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Each row's scores over the vocabulary: [num_rows, vocab_size] float32."""
        return linear(hidden, self._head).float()

    def _attend(
        self,
        layer: Layer,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        layer_pool: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config, kernels = self.config, self._kernels
        qkv = linear(hidden, layer.qkv, layer.qkv_bias)
        if layer.query_norm is not None and layer.key_norm is not None:
            self._norm_heads(qkv, layer.query_norm, layer.key_norm)
        query = kernels.rope_store_kv(qkv, *angles, *layer_pool, batch.slot_mapping)
        out = kernels.paged_attention(
            query,
            *layer_pool,
            batch.block_tables,
            batch.context_lens,
            batch.cu_seqlens_q,
            1 / sqrt(config.head_dim),
        )
        return linear(out.flatten(1), layer.output, layer.output_bias)

    def _norm_heads(self, qkv: torch.Tensor, query_norm: torch.Tensor, key_norm: torch.Tensor) -> None:
        """Norm each head of queries and keys, in place."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        for part, weight in (
            (heads[:, : config.num_heads], query_norm),
            (heads[:, config.num_heads : num_rotated], key_norm),
        ):
            part.copy_(self._kernels.rms_norm(part.contiguous(), weight, config.rms_eps))


def _fuse_layer(weights: Weights, index: int) -> Layer:
    prefix = f"layers.{index}."

    def take(name: str) -> torch.Tensor:
        return weights.pop(prefix + name)

    def take_optional(name: str) -> torch.Tensor | None:
        return weights.pop(prefix + name, None)

    has_bias = prefix + "q_proj.bias" in weights
    return Layer(
        input_norm=take("input_norm.weight"),
        qkv=torch.cat([take(f"{name}_proj.weight") for name in "qkv"]),
        qkv_bias=torch.cat([take(f"{name}_proj.bias") for name in "qkv"]) if has_bias else None,
        query_norm=take_optional("q_norm.weight"),
        key_norm=take_optional("k_norm.weight"),
        output=take("o_proj.weight"),
        output_bias=take_optional("o_proj.bias"),
        mlp_norm=take("mlp_norm.weight"),
        gate_up=torch.cat([take("gate_proj.weight"), take("up_proj.weight")]),
        down=take("down_proj.weight"),
    )
