"""Products with a matrix of few bits: integers in groups of GROUP along the inputs, each with its own scale.

A group's numbers are either symmetric around an offset or lie above a minimum:

    w = scale * (code - offset)    or    w = scale * code + minimum

The inputs are rounded to 8 bits on the fly, in the same groups: with `step = max |x| / 127` of a row's group,
`x` becomes `step * round(x / step)`. Within a group everything is then a sum of integers, which is exact; the
groups' sums are added in float32 in their order. So a row's result depends on that row alone, bit for bit.

Owns the matrix as a value, how floats become one, and the operation in plain torch. The codes are those of
GGUF's formats Q8_0, Q4_0 and Q4_1, which therefore fit unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import embedding, pad

from kernels.linear import Product, linear_reference

__all__ = [
    "BYTE_OFFSET",
    "GROUP",
    "GroupedMatrix",
    "any_linear_reference",
    "as_grouped",
    "as_tensor",
    "concatenate",
    "grouped_linear_reference",
    "join_rows",
    "lookup",
    "quantize_inputs",
    "quantize_matrix",
]

GROUP = 32
BYTE_OFFSET = 128
TOP = 127  # the largest code of a symmetric group of 8 bits
MAX_ROWS_AT_ONCE = 4096
TINY = 1e-30  # groups whose largest number is below it are zeros: 127 / max is finite above


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """[num_outputs, num_groups * GROUP] numbers of 4 or 8 bits."""

    codes: torch.Tensor
    """uint8 [num_outputs, num_groups, GROUP], or [..., GROUP / 2] for 4 bits: byte j holds code j in its
    lower half and code j + GROUP / 2 in its upper half.
    """
    scales: torch.Tensor  # float16 [num_outputs, num_groups]
    minima: torch.Tensor | None  # float16 [num_outputs, num_groups]; None: the groups are symmetric
    offset: int  # 0 if there are minima

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, like that of the matrix as a tensor."""
        return len(self.codes), self.codes.shape[1] * GROUP

    @property
    def bits(self) -> int:
        """Of a code."""
        return 8 * self.codes.shape[2] // GROUP

    @property
    def num_bytes(self) -> int:
        """Memory of the whole matrix."""
        return sum(part.nbytes for part in (self.codes, self.scales, self.minima) if part is not None)

    def to(self, device: torch.device) -> "GroupedMatrix":
        """The same matrix in a device's memory."""
        minima = None if self.minima is None else self.minima.to(device)
        return GroupedMatrix(self.codes.to(device), self.scales.to(device), minima, self.offset)

    def rows(self, indices: torch.Tensor) -> "GroupedMatrix":
        """The rows of these indices, in their order."""
        minima = None if self.minima is None else self.minima[indices]
        return GroupedMatrix(self.codes[indices], self.scales[indices], minima, self.offset)

    def plain_codes(self) -> torch.Tensor:
        """One byte a code: uint8 [num_outputs, num_groups, GROUP]."""
        if self.bits == 8:
            return self.codes
        return torch.cat([self.codes & 15, self.codes >> 4], dim=2)

    def widened(self) -> torch.Tensor:
        """The numbers that the codes stand for: float32 [num_outputs, num_inputs]."""
        values = (self.plain_codes().float() - self.offset) * self.scales.float()[:, :, None]
        if self.minima is not None:
            values += self.minima.float()[:, :, None]
        return values.flatten(1)


def quantize_matrix(weight: torch.Tensor) -> GroupedMatrix:
    """Floats [num_outputs, num_inputs] as symmetric groups of 8 bits. Inputs are padded to whole groups."""
    # A few rows at a time, so that no float32 copy of the whole is ever alive.
    return concatenate([_quantize(rows) for rows in torch.split(weight, MAX_ROWS_AT_ONCE)])


def _quantize(weight: torch.Tensor) -> GroupedMatrix:
    groups = pad(weight.float(), (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(2) / TOP).half()
    steps = scales.float()[:, :, None]
    codes = torch.where(steps > 0, groups / steps, 0).round_().clamp_(-TOP, TOP)
    return GroupedMatrix((codes + BYTE_OFFSET).to(torch.uint8), scales, None, BYTE_OFFSET)


def concatenate(parts: Sequence[GroupedMatrix]) -> GroupedMatrix:
    """The parts' rows below each other, no number changed. Parts of unlike forms become bytes with minima."""
    if len({(part.bits, part.offset, part.minima is None) for part in parts}) > 1:
        parts = [_with_minima(part) for part in parts]
    minima = [part.minima for part in parts if part.minima is not None]
    return GroupedMatrix(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minima) if minima else None,
        parts[0].offset,
    )


def as_grouped(weight: torch.Tensor | GroupedMatrix) -> GroupedMatrix:
    """A matrix that is grouped as it is, and another one quantized."""
    return weight if isinstance(weight, GroupedMatrix) else quantize_matrix(weight)


def as_tensor(weight: torch.Tensor | GroupedMatrix) -> torch.Tensor:
    """A tensor as it is, and a grouped matrix widened to float32."""
    return weight.widened() if isinstance(weight, GroupedMatrix) else weight


def join_rows(parts: Sequence[torch.Tensor | GroupedMatrix]) -> torch.Tensor | GroupedMatrix:
    """The parts' rows below each other. Where one part is grouped, all become so."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return torch.cat(tensors) if len(tensors) == len(parts) else concatenate([as_grouped(p) for p in parts])


def _with_minima(matrix: GroupedMatrix) -> GroupedMatrix:
    # Offsets are powers of two, so this product is exact.
    minima = matrix.scales * -matrix.offset if matrix.minima is None else matrix.minima
    return GroupedMatrix(matrix.plain_codes(), matrix.scales, minima, 0)


def lookup(
    table: torch.Tensor | GroupedMatrix,  # [num_rows, size]
) -> Callable[[torch.Tensor], torch.Tensor]:  # [num_ids] -> [num_ids, size] float32
    """Rows of a table by their indices. The table stays as it is; only the rows asked for are widened."""
    if isinstance(table, GroupedMatrix):
        return lambda ids: table.rows(ids).widened()
    return lambda ids: embedding(ids, table).float()


def quantize_inputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integer-valued float32 [num_rows, num_groups, GROUP], and steps [num_rows, num_groups].

    The step of a group that holds a number that is not finite is NaN, and so are its row's results.
    """
    groups = x.float().view(len(x), x.shape[1] // GROUP, GROUP)
    peaks = groups.abs().amax(2)
    is_tiny = peaks < TINY
    # A plain number over a tensor would be its reciprocal times the number: two roundings.
    inverses = torch.where(is_tiny, 0.0, torch.full_like(peaks, TOP) / peaks)
    codes = (groups * inverses[:, :, None]).round().nan_to_num(0.0).clamp(-TOP, TOP)
    return codes, torch.where(is_tiny, 0.0, peaks * (1 / TOP) + (peaks - peaks))


def any_linear_reference(weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    """A tensor's product or a grouped matrix's: plain torch, which is also what runs on a GPU."""
    if isinstance(weight, GroupedMatrix):
        return grouped_linear_reference(weight, bias)
    return linear_reference(weight, bias)


def grouped_linear_reference(
    matrix: GroupedMatrix,  # [num_outputs, num_inputs]
    bias: torch.Tensor | None,  # [num_outputs]
) -> Product:
    """Plain torch: the integers' sums in float64, which holds them exactly, and one rounding at the end.

    The product's rows may be shorter than the matrix's: they are padded with zeros.
    """
    return partial(_multiply_reference, matrix, bias)


def _multiply_reference(matrix: GroupedMatrix, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    codes, steps = quantize_inputs(pad(x, (0, matrix.shape[1] - x.shape[1])))
    rounded = (codes.double() * steps.double()[:, :, None]).flatten(1)
    out = rounded @ matrix.widened().double().t()
    return (out if bias is None else out + bias.double()).to(x.dtype)
