"""All that is looked at, in order, and going through it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from kernels import Kernels
from scripts.gpu_check.attention_kernels import attention_cases
from scripts.gpu_check.block_kernels import block_cases
from scripts.gpu_check.budget import Budget
from scripts.gpu_check.caching import CACHE, cache_rows
from scripts.gpu_check.cases import Case
from scripts.gpu_check.judge import Meter, judge
from scripts.gpu_check.model import Model, make_model
from scripts.gpu_check.moving import COPY, SWAP, copy_row, swap_rows
from scripts.gpu_check.row import Row
from scripts.gpu_check.row_kernels import row_cases
from scripts.gpu_check.sampling_kernels import sampling_cases
from scripts.gpu_check.shapes import Load, Shapes
from scripts.gpu_check.steps import DECODE, MODEL, PROMPT, decode_rows, model_row, prompt_row
from scripts.gpu_check.store_kernels import store_cases

__all__ = ["SHARES", "Item", "all_items", "carry_out", "kernel_cases", "kernel_item"]

SHARES = {"kernels": 0.45, "model": 0.10, "moves": 0.10, "cache": 0.08, "prompts": 0.07, "decoding": 0.20}
"""Of the seconds of a run, in the order in which they are spent. The yardsticks are paid by the kernels."""


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a run, which gives one row or a few."""

    part: str
    name: str
    shape: str
    run: Callable[[], list[Row]]


def kernel_cases(shapes: Shapes) -> list[Case]:
    """Every kernel, most of them at one size."""
    return [
        *attention_cases(shapes),
        *store_cases(shapes),
        *row_cases(shapes),
        *block_cases(shapes),
        *sampling_cases(shapes),
    ]


def kernel_item(case: Case, device: torch.device, meter: Meter | None) -> Item:
    """One case."""
    return Item("kernels", case.name, case.shape, lambda: [judge(case, device, meter)])


def all_items(shapes: Shapes, device: torch.device, meter: Meter | None) -> list[Item]:
    """Kernels one by one, then whole steps. Without a meter nothing is timed."""
    steps, late = shapes.steps, _LateModel(shapes, device)
    return [
        *(kernel_item(case, device, meter) for case in kernel_cases(shapes)),
        Item("model", MODEL, "beside plain torch", lambda: [model_row(shapes, device)]),
        Item("moves", COPY, f"{steps.num_moved:,} blocks", lambda: [copy_row(late.model, steps, meter)]),
        Item("moves", SWAP, f"{steps.num_moved:,} blocks", lambda: swap_rows(late.model, steps, meter)),
        Item("cache", CACHE, f"prompt of {steps.asked:,}", lambda: cache_rows(late.model, steps, meter)),
        *(
            Item("prompts", PROMPT, f"{length:,} tokens", partial(_prompt, late, length, meter))
            for length in steps.prompts
        ),
        *(Item("decoding", DECODE, str(load), partial(_decode, late, load, meter)) for load in steps.decodes),
    ]


def carry_out(items: Iterable[Item], budget: Budget, note: Callable[[list[Row]], None]) -> list[Row]:
    """Whatever one item raises is its own row, and the others go on. `note` is told all rows after each."""
    rows: list[Row] = []
    for item in items:
        if budget.has_time(item.part):
            rows += _rows_of(item)
        else:
            rows.append(Row.skipped(item.name, item.shape, f"no time is left for {item.part}"))
        note(rows)
    return rows


def _rows_of(item: Item) -> list[Row]:
    try:
        return item.run()
    except Exception as error:  # noqa: BLE001 - a compiler's or a device's own words are the finding
        return [Row.failed(item.name, item.shape, error)]


class _LateModel:
    """Made when it is first needed: kernels alone need the memory before."""

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        self._shapes, self._device = shapes, device

    @cached_property
    def model(self) -> Model:
        """With random weights."""
        return make_model(self._shapes, self._device, Kernels.triton())


def _prompt(late: _LateModel, length: int, meter: Meter | None) -> list[Row]:
    return [prompt_row(late.model, length, meter)]


def _decode(late: _LateModel, load: Load, meter: Meter | None) -> list[Row]:
    return decode_rows(late.model, load, meter)
