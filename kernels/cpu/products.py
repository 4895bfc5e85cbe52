"""Which product a matrix gets on the CPU.

- "full": in the type of the weights, by torch's library.
- "int8": in 8 bits, by products of bytes that are exact (`kernels.byte_linear`), for any number of rows. It
  is for speed, and a row's result depends on that row alone.
- "packed": with as few bits as the file has. It is for memory. With few rows it takes as long as reading the
  codes, with many as long as the arithmetic, and may be faster when the codes are widened into a matrix that
  is dropped after the product: from how many rows on is measured for each shape, see `Crossover`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from kernels.byte_linear import quantize_bytes
from kernels.cpu.byte_linear import ByteProduct
from kernels.cpu.crossover import Crossover
from kernels.cpu.fixed_rows import fixed_rows_linear
from kernels.cpu.grouped_linear import GroupedProduct
from kernels.cpu.linear import linear
from kernels.grouped import GroupedMatrix, as_grouped, as_tensor
from kernels.linear import Product

__all__ = ["Linear", "choose_linear"]

Linear = Callable[[torch.Tensor | GroupedMatrix, torch.Tensor | None], Product]


def choose_linear(products: Literal["full", "int8", "packed"], *, deterministic: bool) -> Linear:
    """Products of tensors as named; grouped matrices are multiplied as what they are.

    Deterministic ones give a row the same bits whatever other rows there are.
    """
    if products == "full":
        return partial(_full, fixed_rows_linear if deterministic else linear)
    if products == "int8":
        return _bytes
    return _grouped if deterministic else partial(_small, Crossover())


def _full(
    multiply: Callable[[torch.Tensor, torch.Tensor | None], Product],
    weight: torch.Tensor | GroupedMatrix,
    bias: torch.Tensor | None,
) -> Product:
    return GroupedProduct(weight, bias) if isinstance(weight, GroupedMatrix) else multiply(weight, bias)


def _grouped(weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    return GroupedProduct(as_grouped(weight), bias)


def _bytes(weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    return ByteProduct(quantize_bytes(as_tensor(weight)), bias)


def _small(crossover: Crossover, weight: torch.Tensor | GroupedMatrix, bias: torch.Tensor | None) -> Product:
    matrix = as_grouped(weight)
    product = GroupedProduct(matrix, bias)
    # Activations are in bfloat16 wherever speed matters.
    blank = torch.zeros(1, matrix.shape[1], dtype=torch.bfloat16)
    form = (matrix.bits, matrix.minima is None, matrix.shape)
    return crossover.join(form, product, lambda: product.multiply_widened, blank)
