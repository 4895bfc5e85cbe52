"""From how many rows on one of two products is faster than the other, measured on this machine.

Owns the measuring and its results, one for each shape and form of matrix. A product's numbers may then depend
on how many rows there are, within the precision of either: deterministic products are made elsewhere.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch

from kernels.linear import Product

__all__ = ["Crossover"]

SIZES = (1, 8, 16, 32, 64, 128, 256)  # rows
NUM_TRIALS = 3
MIN_GAIN = 1.05  # the other product must be so much faster to be worth its memory


class Crossover:
    """Joins two products of the same matrix into one. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._limits: dict[Hashable, int | None] = {}

    def join(
        self, form: Hashable, few: Product, make_many: Callable[[], Product], blank: torch.Tensor
    ) -> Product:
        """`few` below some number of rows, and what `make_many` makes from there on.

        What `make_many` makes is kept only if it is faster for some number of rows. Products of one form are
        measured once. `blank` is a row of inputs: [1, num_inputs].
        """
        if form not in self._limits:
            self._limits[form] = self._first_faster(few, make_many(), blank.repeat(max(SIZES), 1))
        limit = self._limits[form]
        if limit is None:
            return few
        many = make_many()
        return many if limit == SIZES[0] else partial(_multiply, few, many, limit)

    def _first_faster(self, few: Product, many: Product, x: torch.Tensor) -> int | None:
        """The smallest of SIZES from which on `many` is faster; None if it is slower for the largest."""
        limit = None
        for num_rows in reversed(SIZES):
            few_seconds, many_seconds = self._least((few, many), x[:num_rows])
            if few_seconds < MIN_GAIN * many_seconds:
                break
            limit = num_rows
        return limit

    def _least(self, products: Sequence[Product], x: torch.Tensor) -> list[float]:
        """The least seconds of a few trials each, taken in turns, after one that may compile."""
        trials = [[self._seconds(product, x) for product in products] for _ in range(NUM_TRIALS + 1)]
        return [min(times) for times in zip(*trials[1:], strict=True)]

    def _seconds(self, product: Product, x: torch.Tensor) -> float:
        started = self._clock()
        product(x)
        return self._clock() - started


def _multiply(few: Product, many: Product, limit: int, x: torch.Tensor) -> torch.Tensor:
    return few(x) if len(x) < limit else many(x)
