"""Small arrays on their way to a device: one copy for all of a step's, which nobody waits for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["pack", "send", "unpack"]

_ALIGNMENT = 16  # bytes: kernels take pointers to be multiples of it

Arrays = Sequence[npt.NDArray[Any]]


def send(arrays: Arrays, device: torch.device) -> list[torch.Tensor]:
    """The arrays on a device. On the CPU they are the same memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # From pinned memory, which the allocator keeps until the copy has happened.
    packed = torch.from_numpy(pack(arrays)).pin_memory().to(device, non_blocking=True)
    return unpack(packed, arrays)


def pack(arrays: Arrays) -> npt.NDArray[np.uint8]:
    """All bytes one array after the other, each from a multiple of the alignment."""
    packed = np.zeros(sum(map(_room, arrays)), np.uint8)
    place = 0
    for array in arrays:
        packed[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        place += _room(array)
    return packed


def unpack(packed: torch.Tensor, like: Arrays) -> list[torch.Tensor]:
    """Views of what `pack` made, with the arrays' own shapes and types."""
    tensors, place = [], 0
    for array in like:
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        tensors.append(packed[place : place + array.nbytes].view(dtype).view(array.shape))
        place += _room(array)
    return tensors


def _room(array: npt.NDArray[Any]) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
