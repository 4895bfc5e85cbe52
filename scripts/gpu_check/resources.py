"""What compiled kernels take of a chip, as Triton knows once they have been launched.

Kernels are found by what Triton keeps of them, so that they need no names here.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["Resources", "forget", "kernel_modules", "used"]


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one compiled kernel."""

    kernel: str
    registers: int  # of a thread
    spills: int  # words of stack a thread
    shared_bytes: int  # of a program


def kernel_modules() -> list[ModuleType]:
    """Those of `kernels` that are there."""
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("kernels.")]


def forget(modules: Iterable[ModuleType]) -> None:
    """Make kernels be looked up anew when they are launched next: Triton has them on its disk."""
    for cache in _caches(modules):
        cache.clear()


def used(modules: Iterable[ModuleType]) -> list[Resources]:
    """Of what was launched since. Nothing where kernels are not compiled."""
    return [
        Resources(compiled.name, compiled.n_regs, compiled.n_spills, compiled.metadata.shared)
        for cache in _caches(modules)
        for compiled in cache.values()
        if getattr(compiled, "n_regs", None) is not None
    ]


def _caches(modules: Iterable[ModuleType]) -> Iterator[dict[Any, Any]]:
    """Compiled kernels by what they were compiled for, of each device that has any."""
    kernels = {id(each): each for module in modules for each in vars(module).values()}
    for kernel in kernels.values():
        by_device: Any = getattr(kernel, "device_caches", None)
        if isinstance(by_device, Mapping):
            yield from (caches[0] for caches in by_device.values())
