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


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Bit j of four bytes belongs to element j: [num_groups, 32] uint8, zeros and ones."""
    return (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1)


def _q5_0(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale, 4 bytes of fifth bits, 16 of nibbles; x = scale * (q - 16)."""
    codes = _nibbles(groups[:, 6:]).add_(_fifth_bits(groups[:, 2:6]), alpha=16)
    return codes.sub_(16).mul_(_halves(groups, 1))


def _q5_1(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale and minimum, 4 bytes of fifth bits, 16 of nibbles; as Q4_1 with q to 31."""
    halves = _halves(groups, 2)
    codes = _nibbles(groups[:, 8:]).add_(_fifth_bits(groups[:, 4:8]), alpha=16)
    return codes.mul_(halves[:, :1]).add_(halves[:, 1:])


def _q8_0(groups: torch.Tensor) -> torch.Tensor:
    """32 numbers: a float16 scale, then 32 signed bytes; x = scale * q."""
    return groups[:, 2:].contiguous().view(torch.int8).float().mul_(_halves(groups, 1))


# The formats below hold 256 numbers, in 8 parts of 32 or 16 parts of 16 with small integers as scales, which
# share one or two float16 numbers. They are ggml's block_q4_K, block_q5_K and block_q6_K.


def _part_scales(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of 8 parts, 6 bits each, out of 12 bytes: [num_groups, 8] float32 each.

    Bytes 0 to 3 hold the scales of parts 0 to 3 in their lower 6 bits, bytes 4 to 7 their minima. Of parts 4
    to 7, bytes 8 to 11 hold the lower 4 bits, the scale's in the lower half; the upper 2 bits are those left
    over in bytes 0 to 7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1)
    return scales.float(), minima.float()


def _part_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """32 bytes hold a part in their lower and the next in their upper halves: [num_groups, 8, 32]."""
    runs = packed.reshape(-1, 4, 1, 32)
    return torch.cat([runs & 15, runs >> 4], dim=2).view(-1, 8, 32)


def _scaled_parts(groups: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """scale * part_scale * q - minimum * part_minimum, for a group that begins with these four."""
    halves = _halves(groups, 2)
    scales, minima = _part_scales(groups[:, 4:16])
    steps, lows = scales * halves[:, :1], minima * halves[:, 1:]
    return codes.float().mul_(steps[:, :, None]).sub_(lows[:, :, None])


def _q4_k(groups: torch.Tensor) -> torch.Tensor:
    """A float16 scale and minimum, 12 bytes of the parts' own, 128 of nibbles."""
    return _scaled_parts(groups, _part_nibbles(groups[:, 16:]))


def _q5_k(groups: torch.Tensor) -> torch.Tensor:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit p of byte j is of element j of part p."""
    parts = torch.arange(8, dtype=torch.uint8)[:, None]
    fifths = groups[:, None, 16:48] >> parts & 1
    return _scaled_parts(groups, _part_nibbles(groups[:, 48:]) | fifths << 4)


def _q6_k(groups: torch.Tensor) -> torch.Tensor:
    """128 bytes of lower halves, 64 of pairs of upper bits, 16 signed scales, a float16 scale.

    x = scale * part_scale * (q - 32), in parts of 16. Of each half of the group, 64 bytes hold elements 0 to
    63 in their lower and 64 to 127 in their upper halves; pair k of byte j is of element 32 * k + j.
    """
    bytes_of_halves = groups[:, :128].reshape(-1, 2, 1, 64)
    lower = torch.cat([bytes_of_halves & 15, bytes_of_halves >> 4], dim=2).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    upper = groups[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    codes = (lower | upper << 4).float().sub_(32)
    scale = groups[:, 208:].contiguous().view(torch.float16).float()
    steps = groups[:, 192:208].contiguous().view(torch.int8).float() * scale
    return codes.view(-1, 16, 16).mul_(steps[:, :, None])


UNPACKERS: dict[GGMLType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLType.F32: _plain(torch.float32),
    GGMLType.F16: _plain(torch.float16),
    GGMLType.BF16: _plain(torch.bfloat16),
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}
