"""Root-mean-square normalization, alone and after adding to the residual stream.

out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension

The residual stream is float32 whatever the weights are, so that what the layers add is rounded only once.
"""

import torch

__all__ = ["add_rms_norm_reference", "rms_norm_reference"]


def rms_norm_reference(
    x: torch.Tensor,  # [..., size], float32 or as weight
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [..., size], as weight
    """The formula in plain torch."""
    x = x.float()
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight.float()).to(weight.dtype)


def add_rms_norm_reference(
    x: torch.Tensor,  # [num_tokens, size], as weight
    residual: torch.Tensor,  # [num_tokens, size] float32
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [num_tokens, size], as weight
    """Adds x to the residual in place, and returns the sum normalized."""
    residual += x.float()
    return rms_norm_reference(residual, weight, eps)
