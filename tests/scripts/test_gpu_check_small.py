"""Everything that is checked on a GPU, gone through at tiny sizes; and nothing in `kernels` is left out."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.gpu_check.items import all_items, kernel_cases
from scripts.gpu_check.judge import judge
from scripts.gpu_check.resources import kernel_modules
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import FULL, SMALL
from tests.scripts.trials import MICROSECONDS, YARDSTICKS, FixedClock

KERNELS = Path(__file__).parents[2] / "kernels"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Launches:
    """Names of kernels that were launched, while it is entered."""

    names: set[str] = field(default_factory=set)

    def __enter__(self) -> "Launches":
        self._hooks = []
        for kernel in {id(each): each for each in _jit_functions()}.values():
            hook = self._note(kernel.__name__)
            kernel.add_pre_run_hook(hook)
            self._hooks.append((kernel, hook))
        return self

    def __exit__(self, *_: object) -> None:
        for kernel, hook in self._hooks:
            kernel.pre_run_hooks.remove(hook)

    def _note(self, name: str) -> Any:
        return lambda *_, **__: self.names.add(name)


def _jit_functions() -> Iterator[Any]:
    for module in kernel_modules():
        found = (each for each in vars(module).values() if not isinstance(each, type))
        yield from (each for each in found if hasattr(each, "add_pre_run_hook"))


@pytest.fixture(scope="module")
def judged() -> tuple[list[Row], set[str]]:
    """Every case of a kernel, done twice, and which kernels were launched."""
    cases = kernel_cases(SMALL)
    with Launches() as launches:
        rows = [judge(case, DEVICE, (FixedClock(), YARDSTICKS)) for case in cases]
    return rows, launches.names


def test_every_case_is_right_and_stays_right(judged: tuple[list[Row], set[str]]) -> None:
    rows, _ = judged

    assert [(row.name, row.status) for row in rows] == [(row.name, "right") for row in rows]
    assert all(row.microseconds == MICROSECONDS for row in rows)
    assert all(row.bytes is not None and row.bytes > 0 for row in rows)


def test_every_kernel_that_python_launches_has_a_case(judged: tuple[list[Row], set[str]]) -> None:
    _, launched = judged
    expected = launched_by_python(KERNELS)

    assert len(expected) >= 15
    assert expected - launched == set()


def launched_by_python(folder: Path) -> set[str]:
    """Triton's functions that a plain one names: the others are called by Triton's."""
    trees = [ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    compiled = {each.name for each in functions if _is_compiled(each)}
    named = {
        node.id
        for each in functions
        if not _is_compiled(each)
        for node in ast.walk(each)
        if isinstance(node, ast.Name)
    }
    return compiled & named


def _is_compiled(function: ast.FunctionDef) -> bool:
    decorators = [ast.unparse(each) for each in function.decorator_list]
    return any(each == "triton.jit" or each.startswith("triton.jit(") for each in decorators)


def test_a_kernel_without_a_case_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        "def run():\n    _new_kernel[(1,)]()\n"
        "@triton.jit\ndef _new_kernel():\n    helper()\n"
        "@triton.jit(do_not_specialize=['a'])\ndef helper():\n    pass\n"
    )

    assert launched_by_python(tmp_path) == {"_new_kernel"}


def test_both_sizes_have_the_same_cases_with_targets_where_they_belong() -> None:
    small, full = kernel_cases(SMALL), kernel_cases(FULL)
    targets = {case.name: case.target for case in full if case.target is not None}

    assert [case.name for case in small] == [case.name for case in full]
    assert targets["decode_attention"] == 0.80
    assert targets["span_attention"] == 0.55
    streaming = {"rms_norm", "add_rms_norm", "silu_and_mul", "copy_blocks", "gather_blocks", "scatter_blocks"}
    streaming |= {"rope_store_kv", "norm_rope_store_kv", "rope_store_fp8", "norm_rope_store_fp8"}
    assert {name for name, target in targets.items() if target == 0.85} == streaming
    assert targets.keys() == streaming | {"decode_attention", "span_attention"}


@pytest.mark.parametrize("part", ["model", "moves", "cache", "prompts", "decoding"])
def test_whole_steps_are_right(part: str) -> None:
    rows = [row for item in all_items(SMALL, DEVICE, None) if item.part == part for row in item.run()]

    assert rows
    assert all(row.status == "right" for row in rows), rows
    assert all(row.microseconds is None and row.rate is None for row in rows)
