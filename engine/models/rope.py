"""Rotary positions: the frequencies of each head dimension, and the angles of a step's tokens.

Owns the arithmetic, which is float32 in the order that checkpoints were trained with. Rotation itself is
a kernel's.
"""

import math
from collections.abc import Mapping

import torch

from engine.models.config import ModelConfig

__all__ = ["inverse_frequencies", "linear_divisors", "llama3_divisors", "rotations"]


def _plain_frequencies(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return 1.0 / theta**exponents


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """The angle that one position adds, for each pair of dimensions: [head_dim / 2] float32."""
    frequencies = _plain_frequencies(config.rope_theta, config.head_dim)
    if config.rope_divisors is None:
        return frequencies
    return frequencies / torch.tensor(config.rope_divisors, dtype=torch.float32)


def rotations(frequencies: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the tokens' angles, each [num_tokens, head_dim / 2] float32."""
    angles = positions.to(torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def linear_divisors(head_dim: int, factor: float) -> tuple[float, ...]:
    """Positions squeezed evenly by `factor`."""
    return (factor,) * (head_dim // 2)


def llama3_divisors(theta: float, head_dim: int, scaling: Mapping[str, float]) -> tuple[float, ...]:
    """Llama 3.1's stretch: slow frequencies are divided by `factor`, fast ones stay, the rest is blended."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for frequency in _plain_frequencies(theta, head_dim).tolist():
        turns = original * frequency / (2 * math.pi)  # full turns over the original context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - kept) / factor + kept))
    return tuple(divisors)
