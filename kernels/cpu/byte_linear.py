"""Products with a matrix of 8 bits, compiled for the CPU.

Owns the packed form of a matrix and the cutting of a product into tasks: one tile of outputs x some rows.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from kernels.byte_linear import ByteMatrix
from kernels.cpu.amx import WHOLE, configure, is_usable, release
from kernels.cpu.arrays import as_array
from kernels.cpu.byte_rows import product_vector, split_row
from kernels.cpu.byte_tiles import (
    COLUMNS,
    DEPTH,
    ROWS,
    SUMS_SIZE,
    TILE_OUTPUTS,
    sum_registers,
    sum_vectors,
)
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import LANES, load, store

__all__ = ["CHUNK_ROWS", "ByteProduct", "PackedBytes", "compile_product", "factors", "pack", "sum_rows"]

CHUNK_ROWS = 64  # of a task
VECTOR_ROWS = 3  # so many rows at most are summed faster by vectors than by tile registers


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """A matrix in the order in which tiles read it, padded to whole tiles: see `byte_tiles`."""

    codes: npt.NDArray[np.uint8]  # flat
    scales: npt.NDArray[np.float32]  # [num_tiles * TILE_OUTPUTS]
    bias: npt.NDArray[np.float32]  # the same, zeros if there is none
    num_inputs: int
    num_outputs: int  # without padding


def pack(matrix: ByteMatrix, bias: torch.Tensor | None) -> PackedBytes:
    """Copies the matrix."""
    num_outputs, num_inputs = matrix.codes.shape
    missing, more_inputs = -num_outputs % TILE_OUTPUTS, -num_inputs % DEPTH
    codes = pad(matrix.codes, (0, more_inputs, 0, missing)).view(torch.uint8) ^ 128
    tiles = codes.view(-1, COLUMNS, LANES, codes.shape[1] // DEPTH, DEPTH // 4, 4)
    full_bias = torch.zeros(num_outputs + missing)
    if bias is not None:
        full_bias[:num_outputs] = bias
    return PackedBytes(
        codes=tiles.permute(0, 3, 1, 4, 2, 5).contiguous().view(-1).numpy(),
        scales=pad(matrix.scales, (0, missing)).numpy(),
        bias=full_bias.numpy(),
        num_inputs=num_inputs + more_inputs,
        num_outputs=num_outputs,
    )


class ByteProduct:
    """A matrix that rows are multiplied with. The matrix is copied.

    `has_registers`: the machine has tile registers, see `amx.is_usable`. They change no bit of a result.
    """

    def __init__(
        self, matrix: ByteMatrix, bias: torch.Tensor | None, *, has_registers: bool | None = None
    ) -> None:
        self._packed = pack(matrix, bias)
        self._has_registers = is_usable() if has_registers is None else has_registers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """As `byte_linear_reference`, with the last step in float32."""
        packed = self._packed
        missing = -x.shape[1] % LANES
        x = pad(x, (0, missing)) if missing else x.contiguous()
        out = torch.empty(len(x), len(packed.bias), dtype=x.dtype)
        _multiply_all(
            as_array(x),
            packed.codes,
            packed.scales,
            packed.bias,
            packed.num_inputs,
            WHOLE,
            self._has_registers,
            numba.get_num_threads(),
            as_array(out),
        )
        return out if out.shape[1] == packed.num_outputs else out[:, : packed.num_outputs].contiguous()


# A matrix, for compiled functions: codes, scales and bias as `PackedBytes` has them, and their numbers of
# inputs and of outputs, both padded.


@leaf
def sum_rows(matrix, tile, inputs, row, num_rows, has_registers, is_first, sums):
    """Sums of at most ROWS rows with one tile, by what is fastest. Registers read ROWS rows in any case."""
    codes, num_inputs = matrix[0], matrix[3]
    start = tile * TILE_OUTPUTS * num_inputs
    if has_registers and num_rows > VECTOR_ROWS:
        sum_registers(codes, start, inputs[0], inputs[1], row, num_inputs, is_first, sums)
    else:
        sum_vectors(codes, start, inputs[0], inputs[1], row, num_rows, num_inputs, sums)


@leaf
def factors(matrix, output):
    """Scales and bias of LANES outputs."""
    return load(matrix[1], output), load(matrix[2], output)


def compile_product(put: Any) -> Any:
    """Compile the product of some rows with one tile; `put(out, place, vector)` says what becomes of it."""

    @leaf
    def multiply(matrix, tile, inputs, start, end, has_registers, sums, out):
        """Rows `start` to `end`. `sums` has room for ROWS rows; a row of `out` is as long as the outputs."""
        for row in range(start, end, ROWS):
            num_rows = min(ROWS, end - row)
            sum_rows(matrix, tile, inputs, row, num_rows, has_registers, row == start, sums)
            for column in range(COLUMNS):
                output = tile * TILE_OUTPUTS + column * LANES
                scales, bias = factors(matrix, output)
                for index in range(num_rows):
                    place = index * SUMS_SIZE + column * LANES
                    value = product_vector(sums, place, inputs, row + index, scales, bias)
                    put(out, (row + index) * matrix[4] + output, value)

    return multiply


_multiply = compile_product(store)


@numba.njit(parallel=True, cache=True, nogil=True)
def _multiply_all(x, codes, scales, bias, num_inputs, shapes, has_registers, num_workers, out):
    num_rows, size = x.shape
    whole = (num_rows + ROWS - 1) // ROWS * ROWS
    high, low = np.empty(whole * num_inputs, np.int8), np.empty(whole * num_inputs, np.int8)
    inputs = high, low, np.empty(whole, np.float32), np.empty(2 * whole, np.int32)
    for row in numba.prange(num_rows):
        split_row(x, row * size, size, row, num_inputs, inputs)
    num_tiles, num_chunks = len(bias) // TILE_OUTPUTS, (num_rows + CHUNK_ROWS - 1) // CHUNK_ROWS
    num_tasks, matrix = num_tiles * num_chunks, (codes, scales, bias, num_inputs, len(bias))
    for worker in numba.prange(num_workers):
        sums = np.empty(ROWS * SUMS_SIZE, np.int32)
        if has_registers:
            configure(shapes)
        for task in range(worker * num_tasks // num_workers, (worker + 1) * num_tasks // num_workers):
            tile, start = task // num_chunks, task % num_chunks * CHUNK_ROWS
            end = min(start + CHUNK_ROWS, num_rows)
            _multiply(matrix, tile, inputs, start, end, has_registers, sums, out)
        if has_registers:
            release()
