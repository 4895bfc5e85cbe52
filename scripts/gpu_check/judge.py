"""A case carried out: first whether it is right, and only then how long it takes."""

import torch

from scripts.gpu_check.cases import Case, NotHere
from scripts.gpu_check.clock import Clock
from scripts.gpu_check.peaks import Yardsticks
from scripts.gpu_check.resources import forget, kernel_modules, used
from scripts.gpu_check.row import Row

__all__ = ["Meter", "judge"]

Meter = tuple[Clock, Yardsticks]
"""What times are taken with. Without one nothing is timed."""


def judge(case: Case, device: torch.device, meter: Meter | None) -> Row:
    """Timed runs are held against the reference again: what is right once may be wrong the next time."""
    try:
        trial = case.make(device)
    except NotHere as reason:
        return Row.skipped(case.name, case.shape, str(reason))
    modules = kernel_modules()
    forget(modules)
    error = trial.error(trial.run())
    kernels = used(modules)

    def row_of(error: float) -> Row:
        return Row.judged(
            case.name,
            case.shape,
            case.work,
            error=error,
            bound=case.bound,
            target=case.target,
            kernels=kernels,
        )

    row = row_of(error)
    if row.is_bad or meter is None:
        return row
    clock, yardsticks = meter
    microseconds, found = clock.measure(trial.run, trial.reset)
    again = row_of(trial.error(found))
    return again if again.is_bad else row.timed(microseconds, yardsticks)
