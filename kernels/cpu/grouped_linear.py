"""Products with a matrix of few bits, compiled for the CPU.

Owns the packed order of a matrix, and the cutting of a product into tasks. A tile of outputs holds COLUMNS x
LANES of them. It meets the rows eight at a time, so that codes that were loaded, and unpacked from halves of
bytes, serve eight rows. For every row and output the same operations run in the same order, however many
rows there are: a group's integers are summed exactly, and the groups' sums are added in order.

Packed, nothing is wider than it was: 32 numbers of 8 bits take 34 bytes, of 4 bits 18 or 20.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from kernels.cpu.arrays import as_array
from kernels.cpu.integer_tiles import COLUMNS, add_group, store_rows, widen_group
from kernels.cpu.quantize import quantize_row
from kernels.cpu.tiles import zero_tile
from kernels.cpu.vectors import LANES
from kernels.grouped import GROUP, GroupedMatrix

__all__ = ["GroupedProduct"]

TILE_OUTPUTS = COLUMNS * LANES
CHUNK_ROWS = 64  # of a task: their codes and the tile's stay in a core's cache
SERIAL_ROWS = 4  # fewer are rounded faster than other threads are woken


@dataclass(frozen=True, slots=True)
class _Packed:
    """A matrix in the order in which tiles read it; outputs are padded with zeros to whole tiles.

    `arrays` are, each flat:
    - codes: uint8 [num_tiles, num_groups, COLUMNS, GROUP / 4, LANES, 4], or of 4 bits uint32
      [num_tiles, num_groups, COLUMNS, GROUP / 8, LANES], words of four bytes;
    - scales: uint16 [num_tiles, num_groups, COLUMNS, LANES], the bits of float16;
    - minima, if there are any: the same.
    """

    arrays: tuple[npt.NDArray[Any], ...]
    bias: npt.NDArray[np.float32]  # [num_tiles * TILE_OUTPUTS], zeros if there is none
    num_outputs: int
    num_groups: int
    sum_factor: int  # what a group's sum of inputs is multiplied by


class GroupedProduct:
    """A grouped matrix that rows are multiplied with. The matrix is copied."""

    def __init__(self, matrix: GroupedMatrix, bias: torch.Tensor | None) -> None:
        self._packed = _pack(matrix, bias)
        self._offset = np.float32(matrix.offset)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """As `grouped_linear_reference`, the groups' sums added in float32."""
        packed = self._packed
        out = torch.empty(len(x), len(packed.bias), dtype=x.dtype)
        _multiply_all(as_array(self._whole(x)), packed.arrays, packed.bias, packed.sum_factor, as_array(out))
        return self._outputs(out)

    def multiply_widened(self, x: torch.Tensor) -> torch.Tensor:
        """With neither the inputs nor, in float32, the matrix rounded: for many rows.

        Takes memory for the whole matrix in the inputs' type until it has ended.
        """
        packed = self._packed
        wide = torch.empty(packed.num_groups * GROUP, len(packed.bias), dtype=x.dtype)
        _widen(packed.arrays, self._offset, as_array(wide))
        bias = torch.from_numpy(packed.bias).to(x.dtype)
        return self._outputs(torch.addmm(bias, self._whole(x), wide))

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        """Rows that end with a whole group."""
        missing = self._packed.num_groups * GROUP - x.shape[1]
        return pad(x, (0, missing)) if missing else x.contiguous()

    def _outputs(self, out: torch.Tensor) -> torch.Tensor:
        """Rows without the outputs that fill up the last tile."""
        num_outputs = self._packed.num_outputs
        return out if out.shape[1] == num_outputs else out[:, :num_outputs].contiguous()


def _pack(matrix: GroupedMatrix, bias: torch.Tensor | None) -> _Packed:
    num_outputs, num_groups = len(matrix.codes), matrix.codes.shape[1]
    missing = -num_outputs % TILE_OUTPUTS
    factors = [matrix.scales] if matrix.minima is None else [matrix.scales, matrix.minima]
    full_bias = torch.zeros(num_outputs + missing)
    if bias is not None:
        full_bias[:num_outputs] = bias
    return _Packed(
        arrays=(_pack_codes(matrix, missing), *(_pack_factors(each, missing) for each in factors)),
        bias=full_bias.numpy(),
        num_outputs=num_outputs,
        num_groups=num_groups,
        sum_factor=-matrix.offset if matrix.minima is None else 1,
    )


def _pack_codes(matrix: GroupedMatrix, missing: int) -> npt.NDArray[Any]:
    codes = pad(matrix.codes, (0, 0, 0, 0, 0, missing))
    tiles = codes.view(-1, COLUMNS, LANES, codes.shape[1], codes.shape[2] // 4, 4)
    packed: npt.NDArray[Any] = tiles.permute(0, 3, 1, 4, 2, 5).contiguous().view(-1).numpy()
    return packed if matrix.bits == 8 else packed.view(np.uint32)


def _pack_factors(factors: torch.Tensor, missing: int) -> npt.NDArray[np.uint16]:
    tiles = pad(factors, (0, 0, 0, missing)).view(-1, COLUMNS, LANES, factors.shape[1])
    bits: npt.NDArray[np.uint16] = tiles.permute(0, 3, 1, 2).contiguous().view(torch.uint16).view(-1).numpy()
    return bits


# Which form a matrix has is known by the types of its arrays, never by what a function closes over: kept
# machine code is told apart by types alone.


def _multiply_rows(rows: int) -> Any:
    """Compile the product of `rows` rows with one tile."""
    num_vectors = rows * COLUMNS

    @numba.njit
    def multiply(matrix, bias, tile_index, inputs, row, num_groups, out):
        tile = zero_tile(num_vectors)
        for group in range(num_groups):
            place = tile_index * num_groups + group
            tile = add_group(tile, matrix, place, inputs, row * num_groups + group, num_groups)
        column = tile_index * TILE_OUTPUTS
        store_rows(tile, bias, column, out, row * out.shape[1] + column, out.shape[1])

    return multiply


_multiply_1, _multiply_2, _multiply_4, _multiply_8 = [_multiply_rows(rows) for rows in (1, 2, 4, 8)]


@numba.njit
def _multiply_chunk(matrix, bias, tile, inputs, start, end, num_groups, out):
    row = start
    while end - row >= 8:
        _multiply_8(matrix, bias, tile, inputs, row, num_groups, out)
        row += 8
    if end - row >= 4:
        _multiply_4(matrix, bias, tile, inputs, row, num_groups, out)
        row += 4
    if end - row >= 2:
        _multiply_2(matrix, bias, tile, inputs, row, num_groups, out)
        row += 2
    if end - row == 1:
        _multiply_1(matrix, bias, tile, inputs, row, num_groups, out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _multiply_all(x, matrix, bias, sum_factor, out):
    num_rows, num_groups = len(x), x.shape[1] // GROUP
    codes = np.empty(num_rows * num_groups * GROUP, np.int8)
    steps = np.empty(num_rows * num_groups, np.float32)
    sums = np.empty(num_rows * num_groups, np.int32)
    if num_rows <= SERIAL_ROWS:
        for row in range(num_rows):
            quantize_row(x, row, num_groups, sum_factor, codes, steps, sums)
    else:
        for row in numba.prange(num_rows):
            quantize_row(x, row, num_groups, sum_factor, codes, steps, sums)
    inputs = (codes, steps, sums)
    num_tiles, num_chunks = len(bias) // TILE_OUTPUTS, (num_rows + CHUNK_ROWS - 1) // CHUNK_ROWS
    for task in numba.prange(num_tiles * num_chunks):
        tile, start = task // num_chunks, task % num_chunks * CHUNK_ROWS
        end = min(start + CHUNK_ROWS, num_rows)
        _multiply_chunk(matrix, bias, tile, inputs, start, end, num_groups, out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _widen(matrix, offset, out):
    num_tiles, num_groups = out.shape[1] // TILE_OUTPUTS, len(out) // GROUP
    for group in numba.prange(num_groups):
        for tile in range(num_tiles):
            start = group * GROUP * out.shape[1] + tile * TILE_OUTPUTS
            widen_group(matrix, tile * num_groups + group, offset, out, start, out.shape[1])
