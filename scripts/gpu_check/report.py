"""What was found, as a table for people and as JSON for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.gpu_check.peaks import Yardsticks
from scripts.gpu_check.row import Row

__all__ = ["Header", "as_json", "as_table"]

_COLUMNS = (
    *("name", "shape", "error (bound)", "microseconds", "MB", "GFLOP", "floor", "share", "target"),
    *("regs", "spills", "rate", "note"),
)
_MAX_NOTE = 160  # letters: compilers say more, and JSON has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Where and when."""

    device: str
    torch: str
    triton: str
    date: str
    is_small: bool  # tiny shapes, nothing timed

    def __str__(self) -> str:
        small = "; tiny shapes, nothing is timed" if self.is_small else ""
        return f"{self.device}, torch {self.torch}, triton {self.triton}, {self.date}{small}"


def as_table(rows: Sequence[Row]) -> str:
    """One line a row, columns as wide as they must be."""
    lines = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_json(header: Header, yardsticks: Yardsticks | None, rows: Sequence[Row]) -> str:
    """Times and floors are microseconds; the yardsticks' are bytes and operations a second."""
    document = asdict(header) | {
        "yardsticks": None if yardsticks is None else asdict(yardsticks),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(_in_json(document), indent=1)


def _in_json(value: Any) -> Any:
    """JSON has no word for what is not finite."""
    if isinstance(value, dict):
        return {key: _in_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.shape,
        _error(row),
        _number(row.microseconds, ",.1f"),
        _number(None if row.bytes is None else row.bytes / 1e6, ",.1f"),
        _number(None if row.operations is None else row.operations / 1e9, ",.1f"),
        _number(row.floor, ",.1f"),
        "" if row.share is None else f"{row.share:.0%} of {row.yardstick}",
        _target(row),
        _number(row.registers, "d"),
        _number(row.spills, "d"),
        row.rate or "",
        " ".join(row.note.split())[:_MAX_NOTE],
    )


def _error(row: Row) -> str:
    if row.error is None:
        return row.status
    measured = f"{row.error:.1e} ({row.bound:g})"
    return measured if row.status == "right" else f"{row.status} {measured}"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    verdict = "" if row.share is None else ", met" if row.share >= row.target else ", missed"
    return f"{row.target:.0%}{verdict}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
