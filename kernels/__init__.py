"""Tensors in, tensors out: the operations of a decoder over paged keys and values.

Owns the choice between their implementations, which share one contract: `kernels.<operation>` states it, in a
formula, in shapes and as a reference in plain torch. Knows no scheduler, no cache and no model.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.operations import Operations, SamplingOperations
from kernels.stack import LayerWeights, Stack, StackShape

__all__ = ["Kernels", "Products"]

Products = Literal["full", "int8", "packed"]


@dataclass(frozen=True, slots=True)
class Kernels(Operations):
    """One implementation of every operation, the layers of a decoder as one more, and what draws tokens.
    Chosen once and passed on; nobody below asks which it is.
    """

    make_stack: Callable[[Operations, Iterable[LayerWeights], Tensor, StackShape], Stack]
    sampling: SamplingOperations | None = None  # None where logits lie in the host's own memory
    # A machine need not have what the others are made of, so each is imported when it is chosen.

    @staticmethod
    def for_device(device: str, products: Products = "full", *, deterministic: bool = False) -> "Kernels":
        """What a device is served with. Raises ValueError for what it does not have."""
        match device:
            case "cpu":
                return Kernels.cpu(products, deterministic=deterministic)
            case "cuda" if products != "full":
                raise ValueError(
                    f'products is "{products}", which only the CPU has: set it to "full" on a GPU'
                )
            case "cuda" if deterministic:
                raise ValueError("deterministic is true, which only the CPU can be: set it to false on a GPU")
            case "cuda":
                return Kernels.triton()
            case _:
                raise ValueError(f"there are no kernels for the device {device!r}")

    @staticmethod
    def best_products(device: str, dtype: torch.dtype) -> Products:
        """The fastest whose answers are as good as those in full."""
        if device != "cpu" or dtype != torch.bfloat16:
            return "full"
        return "int8" if import_module("kernels.cpu.integer_tiles").HAS_VNNI else "full"

    @staticmethod
    def cpu(products: Products = "full", *, deterministic: bool = False) -> "Kernels":
        """Compiled for this machine's processor; runs on as many threads as torch does.

        `products` are matrix products in full; with matrices of 8 bits where that is faster; or with few bits
        and nothing kept beside them. `deterministic` ones give a row the same bits in any company.
        """
        return _build("kernels.cpu.bundle", products, deterministic=deterministic)

    @staticmethod
    def triton() -> "Kernels":
        """Triton's, for a GPU."""
        return _build("kernels.gpu")

    @staticmethod
    def reference() -> "Kernels":
        """Plain torch on any device: slow, obvious, and the definition of correct."""
        return _build("kernels.reference")


def _build(module: str, *options: Any, **more: Any) -> Kernels:
    kernels: Kernels = import_module(module).build(*options, **more)
    return kernels
