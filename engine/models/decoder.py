"""A Llama-shaped decoder over paged keys and values, driven by its config.

Owns the fused weights and the order of the operations. What a token may attend to is an argument, and so
is the memory of keys and values: a forward pass leaves no trace but what it writes into the slots of its
own tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch

from engine.batch import Batch
from engine.kv_pool import KVPool
from engine.models.config import ModelConfig
from engine.models.rope import inverse_frequencies, rotations
from engine.weights.names import Weights
from kernels import Kernels
from kernels.grouped import join_rows, lookup

__all__ = ["Decoder"]


Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, fused where one product serves for several."""

    input_norm: torch.Tensor  # [hidden_size]
    qkv: Product  # hidden_size -> (num_heads + 2 * num_kv_heads) * head_dim
    query_norm: torch.Tensor | None  # [head_dim]
    key_norm: torch.Tensor | None  # [head_dim]
    output: Product  # num_heads * head_dim -> hidden_size
    mlp_norm: torch.Tensor  # [hidden_size]
    gate_up: Product  # hidden_size -> 2 * intermediate_size
    down: Product  # intermediate_size -> hidden_size


class Decoder:
    """Takes the weights: after construction the mapping that was given is empty."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        self.config = config
        self._kernels = kernels
        table = weights.pop("embed_tokens.weight")
        self._embed = lookup(table)
        self._layers = [_take_layer(weights, index, kernels) for index in range(config.num_layers)]
        self._final_norm = _take_tensor(weights, "norm.weight")
        self._frequencies = inverse_frequencies(config).to(self._final_norm.device)
        self._head = kernels.linear(table if config.tied_embeddings else weights.pop("lm_head.weight"), None)

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        """The hidden state of every token of the batch, normed for the head: [num_tokens, hidden_size].

        Writes keys and values of the batch's tokens to their slots.
        """
        kernels, eps = self._kernels, self.config.rms_eps
        angles = rotations(self._frequencies, batch.positions)
        residual = self._embed(batch.token_ids)
        next_norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        hidden = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for layer, layer_pool, next_norm in zip(self._layers, pool.layers, next_norms, strict=True):
            attended = self._attend(layer, hidden, angles, batch, layer_pool)
            hidden = kernels.add_rms_norm(attended, residual, layer.mlp_norm, eps)
            expanded = kernels.silu_and_mul(layer.gate_up(hidden))
            hidden = kernels.add_rms_norm(layer.down(expanded), residual, next_norm, eps)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Each row's scores over the vocabulary: [num_rows, vocab_size] float32."""
        return self._head(hidden).float()

    def _attend(
        self,
        layer: Layer,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        layer_pool: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        qkv = layer.qkv(hidden)
        if layer.query_norm is not None and layer.key_norm is not None:
            self._norm_heads(qkv, layer.query_norm, layer.key_norm)
        query = self._kernels.rope_store_kv(qkv, *angles, *layer_pool, batch.slot_mapping)
        attended = self._kernels.paged_attention(
            query,
            *layer_pool,
            batch.block_tables,
            batch.context_lens,
            batch.cu_seqlens_q,
            batch.leaders,
            1 / sqrt(self.config.head_dim),
        )
        return layer.output(attended.flatten(1))

    def _norm_heads(self, qkv: torch.Tensor, query_norm: torch.Tensor, key_norm: torch.Tensor) -> None:
        """Norm each head of queries and keys, in place."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        queries = heads[:, : config.num_heads]
        keys = heads[:, config.num_heads : config.num_heads + config.num_kv_heads]
        for part, weight in ((queries, query_norm), (keys, key_norm)):
            part.copy_(self._kernels.rms_norm(part.contiguous(), weight, config.rms_eps))


def _take_tensor(weights: Weights, name: str) -> torch.Tensor:
    tensor = weights.pop(name)
    assert isinstance(tensor, torch.Tensor), f"{name} is no matrix"
    return tensor


def _take_layer(weights: Weights, index: int, kernels: Kernels) -> Layer:
    """Fuse and pack one layer's weights, so that two forms of no more than one layer exist at a time."""

    def take(name: str) -> torch.Tensor:
        return _take_tensor(weights, f"layers.{index}.{name}")

    def take_product(*names: str) -> Product:
        has_bias = f"layers.{index}.{names[0]}.bias" in weights
        bias = torch.cat([take(f"{name}.bias") for name in names]) if has_bias else None
        return kernels.linear(
            join_rows([weights.pop(f"layers.{index}.{name}.weight") for name in names]), bias
        )

    has_norms = f"layers.{index}.q_norm.weight" in weights
    return Layer(
        input_norm=take("input_norm.weight"),
        qkv=take_product("q_proj", "k_proj", "v_proj"),
        query_norm=take("q_norm.weight") if has_norms else None,
        key_norm=take("k_norm.weight") if has_norms else None,
        output=take_product("o_proj"),
        mlp_norm=take("mlp_norm.weight"),
        gate_up=take_product("gate_proj", "up_proj"),
        down=take_product("down_proj"),
    )
