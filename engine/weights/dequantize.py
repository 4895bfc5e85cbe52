"""Stored numbers to tensors: the formats of GGUF that are read, vectorized over the mapped bytes.

Owns the arithmetic of each format. A tensor is read a few rows at a time, so no float32 copy of a whole
matrix is ever alive beside its bfloat16 form.
"""

from collections.abc import Callable
from math import prod

import torch

from engine.gguf import PACKINGS, GGMLType, GGUFFile
from engine.weights.names import WeightsError

__all__ = ["dequantize"]

CHUNK_ELEMENTS = 1 << 18  # a float32 chunk of 1 MiB stays in the second-level cache


def dequantize(file: GGUFFile, name: str, dtype: torch.dtype) -> torch.Tensor:
    """One tensor of the file. Raises WeightsError for a format that is not read."""
    tensor = file.tensors[name]
    unpack = UNPACKERS.get(tensor.type)
    if unpack is None:
        known = ", ".join(kind.name for kind in UNPACKERS)
        raise WeightsError(f"{file.path}: {name} is stored as {tensor.type.name}; these are read: {known}")
    num_elements, num_bytes = PACKINGS[tensor.type]
    groups = torch.from_numpy(file.data(name)).view(-1, num_bytes)
    out = torch.empty(prod(tensor.shape), dtype=dtype)
    step = CHUNK_ELEMENTS // num_elements
    for start in range(0, len(groups), step):
        values = unpack(groups[start : start + step]).view(-1)
        out[start * num_elements : start * num_elements + len(values)] = values
    return out.view(tensor.shape)


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    # The copy starts at an address that suits the type; a tensor's place in the file need not.
    return lambda groups: groups.clone().view(dtype)


def _halves(groups: torch.Tensor, count: int) -> torch.Tensor:
    """The float16 numbers at the start of every group: [num_groups, count] float32."""
    return groups[:, : 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Byte j holds element j in its low half and j + 16 in its high half: [num_groups, 32] float32."""
    out = torch.empty(len(packed), 32)
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4
    return out


def _q4_0(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale, then 16 bytes of nibbles; x = scale * (q - 8)."""
    return _nibbles(groups[:, 2:]).sub_(8).mul_(_halves(groups, 1))


def _q4_1(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale and minimum, then 16 bytes of nibbles; x = scale * q + minimum."""
    halves = _halves(groups, 2)
    return _nibbles(groups[:, 4:]).mul_(halves[:, :1]).add_(halves[:, 1:])


def _q8_0(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale, then 32 signed bytes; x = scale * q."""
    return groups[:, 2:].contiguous().view(torch.int8).float().mul_(_halves(groups, 1))


UNPACKERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.F32: _plain(torch.float32),
    GGMLType.F16: _plain(torch.float16),
    GGMLType.BF16: _plain(torch.bfloat16),
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q8_0: _q8_0,
}
