"""GGUF's packed formats, one number at a time: what the vectorized readers are tested against.

Written from ggml's definitions of its blocks (ggml-common.h, ggml-quants.c), in their order of operations.
"""

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.gguf import PACKINGS, GGMLType

Floats = npt.NDArray[np.float32]

# Where each format keeps its float16 numbers, in bytes from a group's start.
HALVES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}


def random_groups(kind: GGMLType, num_groups: int, seed: int) -> bytes:
    """Groups of random codes; what they stand for is of a size that a model's weights may have."""
    rng = np.random.default_rng(seed)
    num_elements, num_bytes = PACKINGS[kind]
    groups = rng.integers(0, 256, (num_groups, num_bytes), dtype=np.uint8)
    largest = 32 * 63 if num_elements == 256 else 128
    for place in HALVES[kind]:
        halves = rng.uniform(0.3, 1.0, (num_groups, 1)).astype(np.float16) / np.float16(largest)
        groups[:, place : place + 2] = halves.view(np.uint8)
    return groups.tobytes()


def scalar_values(kind: GGMLType, content: bytes) -> Floats:
    """The numbers of whole groups, in their order."""
    num_elements, num_bytes = PACKINGS[kind]
    groups = [content[start : start + num_bytes] for start in range(0, len(content), num_bytes)]
    value = VALUES[kind]
    return np.array([[value(group, index) for index in range(num_elements)] for group in groups], np.float32)


def _half(group: bytes, place: int) -> np.float32:
    return np.float32(struct.unpack_from("<e", group, place)[0])


def _nibble(packed: bytes, index: int) -> int:
    """Of 16 bytes: the lower halves come first, then the upper ones."""
    return packed[index] & 15 if index < 16 else packed[index - 16] >> 4


def _q4_0(group: bytes, index: int) -> np.float32:
    return _half(group, 0) * np.float32(_nibble(group[2:], index) - 8)


def _q4_1(group: bytes, index: int) -> np.float32:
    return _half(group, 0) * np.float32(_nibble(group[4:], index)) + _half(group, 2)


def _fifth_bit(packed: bytes, index: int) -> int:
    return int.from_bytes(packed[:4], "little") >> index & 1


def _q5_0(group: bytes, index: int) -> np.float32:
    code = _nibble(group[6:], index) + 16 * _fifth_bit(group[2:], index)
    return _half(group, 0) * np.float32(code - 16)


def _q5_1(group: bytes, index: int) -> np.float32:
    code = _nibble(group[8:], index) + 16 * _fifth_bit(group[4:], index)
    return _half(group, 0) * np.float32(code) + _half(group, 2)


def _q8_0(group: bytes, index: int) -> np.float32:
    return _half(group, 0) * np.float32(struct.unpack_from("<b", group, 2 + index)[0])


def _part_scale(packed: bytes, part: int) -> tuple[int, int]:
    """Scale and minimum of one of 8 parts, 6 bits each."""
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    low = packed[part + 4]
    return low & 15 | packed[part - 4] >> 6 << 4, low >> 4 | packed[part] >> 6 << 4


def _in_part(group: bytes, part: int, code: int) -> np.float32:
    scale, minimum = _part_scale(group[4:16], part)
    step = _half(group, 0) * np.float32(scale)
    return step * np.float32(code) - _half(group, 2) * np.float32(minimum)


def _part_nibble(packed: bytes, index: int) -> int:
    byte = packed[index // 64 * 32 + index % 32]
    return byte >> 4 if index // 32 % 2 else byte & 15


def _q4_k(group: bytes, index: int) -> np.float32:
    return _in_part(group, index // 32, _part_nibble(group[16:], index))


def _q5_k(group: bytes, index: int) -> np.float32:
    fifth = group[16 + index % 32] >> index // 32 & 1
    return _in_part(group, index // 32, _part_nibble(group[48:], index) + 16 * fifth)


def _q6_k(group: bytes, index: int) -> np.float32:
    half, place = divmod(index, 128)
    byte = group[64 * half + place % 64]
    lower = byte >> 4 if place >= 64 else byte & 15
    upper = group[128 + 32 * half + place % 32] >> place // 32 * 2 & 3
    scale = struct.unpack_from("<b", group, 192 + index // 16)[0]
    return _half(group, 208) * np.float32(scale) * np.float32((lower | upper << 4) - 32)


VALUES: dict[GGMLType, Callable[[bytes, int], np.float32]] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}
