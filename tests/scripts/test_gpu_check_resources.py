"""What kernels take is read off what Triton keeps of them, which here is made up."""

from collections import defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import kernels.rms_norm
from scripts.gpu_check.resources import Resources, forget, kernel_modules, used


def compiled(name: str, registers: int | None) -> SimpleNamespace:
    return SimpleNamespace(name=name, n_regs=registers, n_spills=2, metadata=SimpleNamespace(shared=1024))


def module_with(**caches: dict[str, Any]) -> ModuleType:
    module = ModuleType("kernels.made_up")
    for name, cache in caches.items():
        by_device = defaultdict(lambda: ({}, {}, "target", "backend", "binder"))
        by_device[0] = (cache, {}, "target", "backend", "binder")
        setattr(module, name, SimpleNamespace(device_caches=by_device))
    return module


def test_of_each_kernel_that_was_launched() -> None:
    module = module_with(
        _one_kernel={"key": compiled("_one_kernel", 40)},
        _other_kernel={"key": compiled("_other_kernel", None)},  # compiled, and never launched
        _helper={},
    )

    assert used([module]) == [Resources("_one_kernel", 40, 2, 1024)]


def test_a_kernel_that_two_modules_name_counts_once() -> None:
    module = module_with(_one_kernel={"key": compiled("_one_kernel", 40)})
    importer = ModuleType("kernels.importer")
    importer.__dict__["_one_kernel"] = module.__dict__["_one_kernel"]

    assert len(used([module, importer])) == 1


def test_what_is_forgotten_is_not_told_again() -> None:
    module = module_with(_one_kernel={"key": compiled("_one_kernel", 40)})

    forget([module])

    assert used([module]) == []


def test_all_modules_of_kernels_are_looked_through() -> None:
    names = {module.__name__ for module in kernel_modules()}

    assert kernels.rms_norm.__name__ in names
    assert all(name.startswith("kernels.") for name in names)
