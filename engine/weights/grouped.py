"""Stored matrices of 4 and 8 bits as they are: the formats of GGUF whose groups are the kernels' own.

Owns how their bytes become codes, scales and minima. No number changes.
"""

import torch

from engine.gguf import PACKINGS, GGMLType, GGUFFile, GGUFTensor
from kernels.grouped import BYTE_OFFSET, GROUP, GroupedMatrix

__all__ = ["is_grouped", "read_grouped"]

NIBBLE_OFFSET = 8
NUM_HALVES = {GGMLType.Q4_0: 1, GGMLType.Q4_1: 2, GGMLType.Q8_0: 1}  # float16 numbers before a group's codes


def is_grouped(tensor: GGUFTensor) -> bool:
    """Whether `read_grouped` can read it."""
    return tensor.type in NUM_HALVES and len(tensor.shape) == 2


def read_grouped(file: GGUFFile, name: str) -> GroupedMatrix:
    """A matrix of the file. See `engine.weights.dequantize` for what its formats are."""
    tensor = file.tensors[name]
    groups = torch.from_numpy(file.data(name)).view(
        -1, tensor.shape[1] // GROUP, PACKINGS[tensor.type].num_bytes
    )
    num_halves = NUM_HALVES[tensor.type]
    halves = groups[:, :, : 2 * num_halves].contiguous().view(torch.float16)
    scales = halves[:, :, 0].contiguous()
    codes = groups[:, :, 2 * num_halves :].contiguous()
    match tensor.type:
        case GGMLType.Q4_1:
            return GroupedMatrix(codes, scales, halves[:, :, 1].contiguous(), 0)
        case GGMLType.Q4_0:
            return GroupedMatrix(codes, scales, None, NIBBLE_OFFSET)
        case _:
            # Signed bytes: their top bit turned over adds the offset.
            return GroupedMatrix(codes ^ BYTE_OFFSET, scales, None, BYTE_OFFSET)
