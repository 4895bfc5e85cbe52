"""Which product a matrix gets on the CPU: in full, of few bits, or the one of both that is faster.

Owns the choice, which is made once for each matrix. With few bits, a product of few rows takes as long as
reading the codes. One of many rows takes as long as the arithmetic, which some processors do faster in
bfloat16 (those that multiply tiles above all). So there is a second way for many rows:

- "int8" keeps the matrix in full as well, where that is faster for any number of rows at all: 2 bytes a
  number on top of 1.06. It is for speed.
- "packed" widens the codes into a matrix in full that is dropped after the product. It is for memory.

From how many rows on the second way is taken is measured for each shape: see `Crossover`. On two cores with
AMX it was 32 or 64 in "int8" and 256 in "packed". With AMX turned off, 576 inputs and 3072 outputs of 8 bits
took 1.7 times less than bfloat16 for 1 row, as long for 8, and 2.7 to 5 times less for 16 to 256.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from kernels.cpu.crossover import Crossover
from kernels.cpu.fixed_rows import fixed_rows_linear
from kernels.cpu.grouped_linear import GroupedProduct
from kernels.cpu.linear import linear
from kernels.grouped import GroupedMatrix, as_grouped
from kernels.linear import Product

__all__ = ["Linear", "choose_linear"]

Linear = Callable[[torch.Tensor | GroupedMatrix, torch.Tensor | None], Product]


def choose_linear(products: Literal["full", "int8", "packed"], *, deterministic: bool) -> Linear:
    """Products of tensors as named; grouped matrices are multiplied as what they are.

    Deterministic ones give a row the same bits whatever other rows there are.
    """
    if products == "full":
        return partial(_full, fixed_rows_linear if deterministic else linear)
    if deterministic:
        return _grouped
    return partial(_fast if products == "int8" else _small, Crossover())


def _full(
    multiply: Callable[[torch.Tensor, torch.Tensor | None], Product],
    weight: torch.Tensor | GroupedMatrix,
    bias: torch.Tensor | None,
) -> Product:
    return GroupedProduct(weight, bias) if isinstance(weight, GroupedMatrix) else multiply(weight, bias)


def _grouped(weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    return GroupedProduct(as_grouped(weight), bias)


def _fast(crossover: Crossover, weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    if isinstance(weight, GroupedMatrix):
        return _small(crossover, weight, bias)
    blank = weight.new_zeros(1, weight.shape[1])
    form = ("in full", weight.shape, weight.dtype)
    return crossover.join(form, _grouped(weight, bias), partial(linear, weight, bias), blank)


def _small(crossover: Crossover, weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    matrix = as_grouped(weight)
    product = GroupedProduct(matrix, bias)
    # Activations are in bfloat16 wherever speed matters.
    blank = torch.zeros(1, matrix.shape[1], dtype=torch.bfloat16)
    form = (matrix.bits, matrix.minima is None, matrix.shape)
    return crossover.join(form, product, lambda: product.multiply_widened, blank)
