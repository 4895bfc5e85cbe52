"""Products with a matrix of 8 bits, whose inputs are rounded to 15: sums of integers, exact to the end.

Each output has one scale, and each row of inputs one step:

    w[output, input] = scale[output] * code[output, input]
    x[row, input]   ~= step[row] * (128 * high + low)

    out[row, output] = scale * step * (128 * sum(code * high) + sum(code * low)) + bias

The inputs' high and low parts are bytes, so that processors which multiply bytes do all the work, twice. What
they add is exact in any order: a row's result depends on that row alone, bit for bit, whatever computes it.

Owns the matrix as a value, how floats become one, and the operation in plain torch.
"""

from dataclasses import dataclass
from functools import partial

import torch

from kernels.linear import Product

__all__ = ["INPUT_TOP", "TOP", "ByteMatrix", "byte_linear_reference", "quantize_bytes", "split_inputs"]

TOP = 127  # the largest code
PART = 128  # what the high part of an input counts
INPUT_TOP = TOP * PART
TINY = 1e-30  # rows whose largest number is below it are zeros: INPUT_TOP / max is finite above
MAX_INPUTS = 1 << 16  # of a row: the sum of so many products of bytes fits 32 bits
MAX_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class ByteMatrix:
    """[num_outputs, num_inputs] numbers of 8 bits."""

    codes: torch.Tensor  # int8 [num_outputs, num_inputs], from -TOP to TOP
    scales: torch.Tensor  # float32 [num_outputs]

    def widened(self) -> torch.Tensor:
        """The numbers that the codes stand for: float32 [num_outputs, num_inputs]."""
        return self.codes.float() * self.scales[:, None]


def quantize_bytes(weight: torch.Tensor) -> ByteMatrix:
    """Floats [num_outputs, num_inputs] rounded to the nearest code. Raises ValueError for too many inputs."""
    if weight.shape[1] > MAX_INPUTS:
        raise ValueError(f"{weight.shape[1]} inputs: products of bytes add at most {MAX_INPUTS}")
    # A few rows at a time, so that no float32 copy of the whole is ever alive.
    parts = [_quantize(rows) for rows in torch.split(weight, MAX_ROWS_AT_ONCE)]
    return ByteMatrix(torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts]))


def _quantize(weight: torch.Tensor) -> ByteMatrix:
    numbers = weight.float()
    scales = numbers.abs().amax(1) / TOP
    codes = torch.where(scales[:, None] > 0, numbers / scales[:, None], 0).round_().clamp_(-TOP, TOP)
    return ByteMatrix(codes.to(torch.int8), scales)


def split_inputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """High and low parts, int32 [num_rows, num_inputs], and steps [num_rows] float32.

    The step of a row that holds a number that is not finite is NaN, and so are its results.
    """
    numbers = x.float()
    peaks = numbers.abs().amax(1)
    is_tiny = peaks < TINY
    # A plain number over a tensor would be its reciprocal times the number: two roundings.
    inverses = torch.where(is_tiny, 0.0, torch.full_like(peaks, INPUT_TOP) / peaks)
    codes = (numbers * inverses[:, None]).round().nan_to_num(0.0).clamp(-INPUT_TOP, INPUT_TOP).int()
    high = (codes + PART // 2) >> 7
    return high, codes - PART * high, torch.where(is_tiny, 0.0, peaks * (1 / INPUT_TOP) + (peaks - peaks))


def byte_linear_reference(
    matrix: ByteMatrix,  # [num_outputs, num_inputs]
    bias: torch.Tensor | None,  # [num_outputs]
) -> Product:
    """Plain torch: the integers' sums in float64, which holds them exactly, and one rounding at the end."""
    return partial(_multiply_reference, matrix, bias)


def _multiply_reference(matrix: ByteMatrix, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    high, low, steps = split_inputs(x)
    sums = (PART * high + low).double() @ matrix.codes.double().t()
    out = sums * (steps[:, None].double() * matrix.scales.double())
    return (out if bias is None else out + bias.double()).to(x.dtype)
