"""What distinguishes one Llama-shaped model from another, as data.

Owns the figures that the decoder reads, and nothing about where they came from. A model that differs in
anything that is not written here cannot be run exactly, and is refused by name before its weights are
read.
"""

from dataclasses import dataclass

__all__ = ["ModelConfig", "UnsupportedModel"]


class UnsupportedModel(ValueError):
    """The decoder cannot run this model exactly. The message names the model and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder: RMS norms, rotary positions, grouped-query attention, a gated SiLU feed-forward."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: (
        int  # at most the sliding window, if the model has one: up to there a window hides nothing
    )
    rms_eps: float
    rope_theta: float
    rope_divisors: tuple[float, ...] | None = (
        None  # [head_dim / 2]; each inverse frequency is divided by its own
    )
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    qk_norm: bool = False  # queries and keys are normed per head before they are rotated
    tied_embeddings: bool = False  # the output head is the embedding

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"{self.family}: {self.num_heads} query heads cannot share {self.num_kv_heads} key heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"{self.family}: an odd head size of {self.head_dim} cannot be rotated")
