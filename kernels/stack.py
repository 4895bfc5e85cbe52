"""A decoder's layers, one after the other, as one operation.

    for each layer:
        residual += attention(norm(residual))
        residual += feed_forward(norm(residual))
    hidden = norm(residual)

Owns the weights of a layer as a value, and the operation made of smaller ones. An implementation may do all
of it at once instead.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from torch import Tensor

from kernels.linear import Product
from kernels.operations import Matrix, Operations

__all__ = [
    "Attend",
    "BeginAttention",
    "ComposedStack",
    "LayerWeights",
    "Norms",
    "Stack",
    "StackShape",
    "StepTensors",
    "begin_composed",
]


@dataclass(frozen=True, slots=True)
class StackShape:
    """What all layers have in common."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float

    @property
    def score_scale(self) -> float:
        """What queries times keys are multiplied with."""
        return 1 / sqrt(self.head_dim)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights, joined where one product serves for several. Biases are [num_outputs]."""

    input_norm: Tensor  # [hidden_size]
    qkv: Matrix  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: Matrix  # [hidden_size, num_heads * head_dim]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [hidden_size]
    gate_up: Matrix  # [2 * intermediate_size, hidden_size]
    gate_up_bias: Tensor | None
    down: Matrix  # [hidden_size, intermediate_size]
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What the layers are told about a step's tokens: see docs/data-layout.md. A sequence is one span."""

    slot_mapping: Tensor  # [num_tokens] int32
    block_tables: Tensor  # [num_sequences, max_blocks] int32; past a sequence's blocks, zeros
    context_lens: Tensor  # [num_sequences] int32, this step's tokens included
    cu_seqlens_q: Tensor  # [num_sequences + 1] int32
    leaders: Tensor  # [num_sequences, num_partitions] int32, see kernels/partitions.py


class Stack(Protocol):
    """All layers and the norm after them."""

    def __call__(
        self,
        residual: Tensor,
        angles: tuple[Tensor, Tensor],
        step: StepTensors,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """The tokens' hidden states, [num_tokens, hidden_size], in the type that the head's product takes.

        residual: [num_tokens, hidden_size] float32, the embedded tokens, overwritten. angles: cosines and
        sines, [num_tokens, head_dim / 2] float32. keys, values: the pool's, whose first dimension is the
        layers; those of the tokens are written to their slots.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer whose matrices have become products."""

    input_norm: Tensor
    qkv: Product
    head_norms: tuple[Tensor, Tensor, float] | None
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


Norms = tuple[Tensor, Tensor, float]
"""Of queries and of keys, [head_dim] each, and their epsilon."""

Attend = Callable[[Tensor, Norms | None, Tensor, Tensor], Tensor]
"""What lies between two products of a layer: takes queries, keys and values as the first one gives them, the
norms of heads, and the layer's pools; stores keys and values; gives [num_tokens, num_heads * head_dim].
"""

BeginAttention = Callable[[Operations, StackShape, StepTensors, tuple[Tensor, Tensor], int, int], Attend]
"""Made once a step for all layers: of the step, its angles, its number of tokens and the size of a block."""


def begin_composed(
    operations: Operations,
    shape: StackShape,
    step: StepTensors,
    angles: tuple[Tensor, Tensor],
    num_tokens: int,
    block_size: int,
) -> Attend:
    """Operation by operation, with nothing known before."""

    def attend(qkv: Tensor, norms: Norms | None, keys: Tensor, values: Tensor) -> Tensor:
        if norms is not None:
            _norm_heads(operations, shape, qkv, norms)
        query = operations.rope_store_kv(qkv, *angles, keys, values, step.slot_mapping)
        attended = operations.paged_attention(
            query,
            keys,
            values,
            step.block_tables,
            step.context_lens,
            step.cu_seqlens_q,
            step.leaders,
            shape.score_scale,
        )
        return attended.flatten(1)

    return attend


class ComposedStack:
    """The layers, operation by operation. Takes the weights one layer at a time."""

    def __init__(
        self,
        operations: Operations,
        layers: Iterable[LayerWeights],
        final_norm: Tensor,
        shape: StackShape,
        *,
        begin_attention: BeginAttention = begin_composed,
    ) -> None:
        self._operations = operations
        self._shape = shape
        self._begin_attention = begin_attention
        self._layers = [_with_products(weights, operations, shape.rms_eps) for weights in layers]
        self._norms = [layer.input_norm for layer in self._layers] + [final_norm]

    def __call__(
        self,
        residual: Tensor,
        angles: tuple[Tensor, Tensor],
        step: StepTensors,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """As `Stack` has it."""
        operations, eps = self._operations, self._shape.rms_eps
        attend = self._begin_attention(operations, self._shape, step, angles, len(residual), keys.shape[-1])
        hidden = operations.rms_norm(residual, self._norms[0], eps)
        for layer, next_norm, *pools in zip(
            self._layers, self._norms[1:], keys.unbind(), values.unbind(), strict=True
        ):
            attended = layer.output(attend(layer.qkv(hidden), layer.head_norms, *pools))
            hidden = operations.add_rms_norm(attended, residual, layer.mlp_norm, eps)
            expanded = operations.silu_and_mul(layer.gate_up(hidden))
            hidden = operations.add_rms_norm(layer.down(expanded), residual, next_norm, eps)
        return hidden


def _norm_heads(operations: Operations, shape: StackShape, qkv: Tensor, norms: Norms) -> None:
    """Norm each head of queries and keys, in place."""
    query_norm, key_norm, eps = norms
    heads = qkv.view(len(qkv), -1, shape.head_dim)
    queries = heads[:, : shape.num_heads]
    keys = heads[:, shape.num_heads : shape.num_heads + shape.num_kv_heads]
    for part, weight in ((queries, query_norm), (keys, key_norm)):
        part.copy_(operations.rms_norm(part.contiguous(), weight, eps))


def _with_products(weights: LayerWeights, operations: Operations, eps: float) -> _Layer:
    head_norms = None
    if weights.query_norm is not None and weights.key_norm is not None:
        head_norms = weights.query_norm, weights.key_norm, eps
    return _Layer(
        input_norm=weights.input_norm,
        qkv=operations.linear(weights.qkv, weights.qkv_bias),
        head_norms=head_norms,
        output=operations.linear(weights.output, weights.output_bias),
        mlp_norm=weights.mlp_norm,
        gate_up=operations.linear(weights.gate_up, weights.gate_up_bias),
        down=operations.linear(weights.down, weights.down_bias),
    )
