"""Cases, clocks and yardsticks of tests' own: nothing of them needs a GPU."""

from collections.abc import Callable

import torch

from scripts.gpu_check.cases import Case, Trial, distance
from scripts.gpu_check.clock import nothing
from scripts.gpu_check.counts import Work
from scripts.gpu_check.peaks import Yardsticks

__all__ = ["CPU", "MICROSECONDS", "YARDSTICKS", "FixedClock", "case_of"]

CPU = torch.device("cpu")
MICROSECONDS = 437.25
YARDSTICKS = Yardsticks(copy=4e12, matrix=8e14)


class FixedClock:
    """Does the work once more, and says that it took so long."""

    def measure(
        self,
        run: Callable[[], torch.Tensor],
        reset: Callable[[], object] = nothing,
        *,
        is_recorded: bool = True,
    ) -> tuple[float, torch.Tensor]:
        reset()
        return MICROSECONDS, run()


def case_of(*results: float, bound: float = 1e-3, target: float | None = None) -> Case:
    """One whose results are these, in turn, where 1 would be right. It moves 800 MB."""
    left = list(results)

    def make(_: torch.device) -> Trial:
        return Trial(
            run=lambda: torch.full((4,), left.pop(0) if len(left) > 1 else left[0]),
            error=lambda found: distance(found, torch.ones(4)),
        )

    return Case(name="made_up", shape="4", work=Work(800_000_000, 8), bound=bound, make=make, target=target)
