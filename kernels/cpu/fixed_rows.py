"""Products in full whose rows do not depend on each other, bit for bit.

A library chooses how it adds by how many rows there are. Here it is always asked for NUM_ROWS of them, zeros
below the last, so all that a row's result could still depend on is its place among them. That it does not is
tested once for every matrix, when it is handed over.

What it costs, against products of as many rows as there are: nothing for a full tile. Two cores, a model of
135 million parameters, least of 12 trials on a busy machine: 1.05 times for 1 row, 1.6 for 8, 0.9 for 32; for
256 rows 1.25 times with AVX-512 and 4 times with AMX, which likes larger products. Larger tiles make few rows
dearer, smaller ones many.
"""

from functools import partial

import torch
from torch.nn.functional import pad

from kernels.cpu.linear import linear
from kernels.linear import Product

__all__ = ["NUM_ROWS", "fixed_rows_linear"]

NUM_ROWS = 32


def fixed_rows_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """As `kernels.cpu.linear.linear`. Raises ValueError where this machine's library does not allow it."""
    product = linear(weight, bias)
    x = torch.linspace(-1, 1, weight.shape[1]).sin().to(weight.dtype)
    found = product(x.repeat(NUM_ROWS, 1))
    if not torch.equal(found, found[:1].expand_as(found)):
        raise ValueError(
            "deterministic is true, but this machine's matrix products in full depend on where a row stands: "
            'set products to "int8"'
        )
    return partial(_multiply, product)


def _multiply(product: Product, x: torch.Tensor) -> torch.Tensor:
    num_rows = len(x)
    missing = -num_rows % NUM_ROWS
    x = pad(x, (0, 0, 0, missing)) if missing else x
    if len(x) == NUM_ROWS:
        return product(x)[:num_rows]
    return torch.cat([product(rows) for rows in torch.split(x, NUM_ROWS)])[:num_rows]
