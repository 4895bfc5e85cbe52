"""Tensors as the arrays that compiled functions take. They share memory; bfloat16 becomes its bits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["as_array"]


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """An array of the tensor's type, or of uint16 for bfloat16. It is contiguous, in main memory."""
    assert tensor.is_contiguous(), "compiled kernels count elements from the first"
    if tensor.dtype == torch.bfloat16:
        bits: npt.NDArray[np.uint16] = tensor.view(torch.uint16).numpy()
        return bits
    return tensor.numpy()
