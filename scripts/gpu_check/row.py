"""One line of the report. What is wrong has no time, no share and no rate: the constructors see to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from scripts.gpu_check.counts import Work
from scripts.gpu_check.peaks import Yardstick, Yardsticks
from scripts.gpu_check.resources import Resources

__all__ = ["Row", "Status"]

Status = Literal["right", "WRONG", "FAILED", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one case. Figures are None where there are none."""

    name: str
    shape: str
    status: Status
    error: float | None = None
    bound: float | None = None
    microseconds: float | None = None
    bytes: int | None = None  # that must be moved
    operations: int | None = None  # that must be carried out
    floor: float | None = None  # microseconds, by the yardstick that takes longer
    yardstick: Yardstick | None = None
    share: float | None = None  # of the floor over the time
    target: float | None = None  # of the share
    registers: int | None = None  # of a thread, the most of any kernel that was launched
    spills: int | None = None  # words of a thread, likewise
    kernels: tuple[Resources, ...] = ()
    rate: str | None = None  # the time, said in another unit
    note: str = ""

    def __post_init__(self) -> None:
        if self.status != "right":
            timed = self.microseconds, self.floor, self.share, self.rate
            assert timed == (None, None, None, None), "only what is right has a time"

    @classmethod
    def judged(
        cls,
        name: str,
        shape: str,
        work: Work | None,
        *,
        error: float,
        bound: float,
        target: float | None = None,
        kernels: Sequence[Resources] = (),
        note: str = "",
    ) -> Self:
        """Right or wrong by its error, and without a time so far. An error that is NaN is wrong."""
        return cls(
            name=name,
            shape=shape,
            status="right" if error <= bound else "WRONG",
            error=error,
            bound=bound,
            bytes=None if work is None else work.num_bytes,
            operations=None if work is None else work.operations,
            target=target,
            registers=max((each.registers for each in kernels), default=None),
            spills=max((each.spills for each in kernels), default=None),
            kernels=tuple(kernels),
            note=note,
        )

    @classmethod
    def skipped(cls, name: str, shape: str, reason: str) -> Self:
        """Not looked at."""
        return cls(name=name, shape=shape, status="skipped", note=reason)

    @classmethod
    def failed(cls, name: str, shape: str, error: BaseException) -> Self:
        """It raised."""
        return cls(name=name, shape=shape, status="FAILED", note=f"{type(error).__name__}: {error}")

    @property
    def is_bad(self) -> bool:
        """Whether something must be mended."""
        return self.status in ("WRONG", "FAILED")

    def timed(self, microseconds: float, yardsticks: Yardsticks, *, rate: str | None = None) -> "Row":
        """The same, with its time beside its floor. Only for what is right."""
        floor: float | None = None
        yardstick: Yardstick | None = None
        if self.bytes is not None and self.operations is not None:
            floor, yardstick = yardsticks.floor(Work(self.bytes, self.operations))
        return replace(
            self,
            microseconds=microseconds,
            floor=floor,
            yardstick=yardstick,
            share=None if floor is None else floor / microseconds,
            rate=rate,
        )
