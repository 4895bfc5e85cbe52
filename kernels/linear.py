"""Products with a fixed matrix.

out = x . weight^T + bias

The matrix is handed over once, so that an implementation may keep it in whatever order its processor likes.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import linear

__all__ = ["Product", "linear_reference"]

Product = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, num_inputs] -> [num_rows, num_outputs]


def linear_reference(
    weight: torch.Tensor,  # [num_outputs, num_inputs]
    bias: torch.Tensor | None,  # [num_outputs]
) -> Product:
    """Plain torch, which is also what runs on a GPU."""
    return partial(linear, weight=weight, bias=bias)
