"""The figures of several servers as one table for people. Pure."""

from collections.abc import Mapping

from benchmarks.load.report import FLAT
from benchmarks.load.rounds import Compared, Spread

__all__ = ["comparison_table"]


def comparison_table(compared: Mapping[str, Mapping[str, Compared]]) -> str:
    """A line a figure with each server's median (least to greatest), and a line of ratios below it. Figures
    that no server has are left out.
    """
    servers = list(next(iter(compared.values())))
    rows = [["median (least to greatest)", *servers]]
    for name, by_server in compared.items():
        if any(each.values for each in by_server.values()):
            rows.append([FLAT[name], *(_written(each.values) for each in by_server.values())])
        if any(each.ratios for each in by_server.values()):
            ratios = (_written(each.ratios, "{:,.2f}") for each in by_server.values())
            rows.append([f"  over {servers[0]}", *ratios])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: list[str], widths: list[int]) -> str:
    first, *others = [
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "   ".join([first, *others]).rstrip()


def _written(spread: Spread | None, form: str | None = None) -> str:
    if spread is None:
        return "" if form else "-"
    median, low, high = (
        form.format(value) if form else _number(value) for value in (spread.median, spread.low, spread.high)
    )
    return f"{median} ({low} to {high})"


def _number(value: float) -> str:
    """With three or four digits that count."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:,.1f}" if size >= 10 else f"{value:,.3f}"
