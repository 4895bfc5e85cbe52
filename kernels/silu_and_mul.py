"""The gated feed-forward's activation.

out = silu(gate) * up, silu(x) = x / (1 + exp(-x))
"""

import torch

__all__ = ["silu_and_mul_reference"]


def silu_and_mul_reference(
    gate_up: torch.Tensor,  # [num_tokens, 2 * size]: gate, then up
) -> torch.Tensor:  # [num_tokens, size]
    """The formula in plain torch, rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
