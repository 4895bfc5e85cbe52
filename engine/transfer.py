"""Small arrays on their way to a device and back: one copy there for all of a step's, which nobody waits for,
and one back, which is all that a step waits for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Arrays", "fetch", "pack", "send", "unpack"]

_ALIGNMENT = 16  # bytes: kernels take pointers to be multiples of it

Arrays = Sequence[npt.NDArray[Any]]


def send(arrays: Arrays, device: torch.device) -> list[torch.Tensor]:
    """The arrays on a device. On the CPU they are the same memory."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cpu":
        return tensors
    # From pinned memory, which the allocator keeps until the copy has happened.
    packed = torch.from_numpy(pack(arrays)).pin_memory().to(device, non_blocking=True)
    return unpack(packed, tensors)


def fetch(tensors: Sequence[torch.Tensor]) -> Arrays:
    """The tensors' numbers on the host; on the CPU they are the same memory. There is one at least, and all
    are on one device. What was asked of it before has been carried out on return, even if all are empty.
    """
    device = tensors[0].device
    if device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    packed = torch.empty(_size(tensors), dtype=torch.uint8, device=device)
    for room, tensor in zip(unpack(packed, tensors), tensors, strict=True):
        room.copy_(tensor)
    here = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    here.copy_(packed)
    return [tensor.numpy() for tensor in unpack(here, tensors)]


def pack(arrays: Arrays) -> npt.NDArray[np.uint8]:
    """All bytes one array after the other, each from a multiple of the alignment."""
    packed = np.zeros(_size(arrays), np.uint8)
    place = 0
    for array in arrays:
        packed[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        place += _room(array)
    return packed


def unpack(packed: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of what `pack` makes, with these shapes and types."""
    tensors, place = [], 0
    for tensor in like:
        room = packed[place : place + tensor.nbytes]
        tensors.append(room.view(tensor.dtype).view(tensor.shape))
        place += _room(tensor)
    return tensors


def _size(parts: Arrays | Sequence[torch.Tensor]) -> int:
    """In bytes, and never none: nothing has no views, and a copy of nothing waits for nothing."""
    return max(sum(map(_room, parts)), 1)


def _room(part: npt.NDArray[Any] | torch.Tensor) -> int:
    return -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
