"""The operations that a decoder is made of, and those that draw tokens, as one value each."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kernels.grouped import GroupedMatrix
from kernels.linear import Product

__all__ = ["Matrix", "Operations", "SamplingOperations"]

Matrix = Tensor | GroupedMatrix


@dataclass(frozen=True, slots=True)
class Operations:
    """One implementation of each. `kernels.<operation>` states what it does."""

    linear: Callable[[Matrix, Tensor | None], Product]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    rope_store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    paged_attention: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
    silu_and_mul: Callable[[Tensor], Tensor]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    gather_blocks: Callable[[Tensor, Tensor, Tensor], None]
    scatter_blocks: Callable[[Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class SamplingOperations:
    """One implementation of each, for logits that nobody brings to the host."""

    adjust_logits: Callable[[Tensor, Tensor, Tensor], None]
    sample: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    max_vocab: int  # `sample` takes rows of so many tokens at most
