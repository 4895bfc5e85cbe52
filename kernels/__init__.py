"""Tensors in, tensors out: the operations of a decoder over paged keys and values.

Owns the choice between their implementations, which share one contract: `kernels.<operation>` states it, in a
formula, in shapes and as a reference in plain torch. Knows no scheduler, no cache and no model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

__all__ = ["Kernels"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every operation. Chosen once and passed on; nobody below asks which it is."""

    linear: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    rope_store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    paged_attention: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
    silu_and_mul: Callable[[Tensor], Tensor]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]

    # A machine need not have what the others are made of, so each is imported when it is chosen.

    @staticmethod
    def for_device(device: str) -> "Kernels":
        """What a device is served with."""
        match device:
            case "cpu":
                return Kernels.cpu()
            case "cuda":
                return Kernels.triton()
            case _:
                raise ValueError(f"there are no kernels for the device {device!r}")

    @staticmethod
    def cpu() -> "Kernels":
        """Compiled for this machine's processor; runs on as many threads as torch does."""
        return _build("kernels.cpu.bundle")

    @staticmethod
    def triton() -> "Kernels":
        """Triton's, for a GPU."""
        return _build("kernels.gpu")

    @staticmethod
    def reference() -> "Kernels":
        """Plain torch on any device: slow, obvious, and the definition of correct."""
        return _build("kernels.reference")


def _build(module: str) -> Kernels:
    kernels: Kernels = import_module(module).build()
    return kernels
