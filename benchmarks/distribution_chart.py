"""Cumulative distributions as SVG: which share of the values lie at or below each, on a logarithmic axis."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Panel", "distribution_chart"]

_WIDTH, _PANEL_HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 170, 34, 44
_COLOURS = ("#1f5fa8", "#c2410c", "#3f7d3a", "#6b6b6b", "#7e3794")
_MAX_POINTS = 200  # of one line; more cannot be told apart at this size


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: a line for each name that has values, none below 0. A 0 stands at the axis' begin."""

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]


def distribution_chart(panels: Sequence[Panel]) -> str:
    """The panels that have a value above 0, below each other. A name has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.values))
    shown = [panel for panel in panels if any(map(any, panel.values.values()))]
    height = max(1, len(shown)) * _PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(shown):
        parts.append(f'<g transform="translate(0 {number * _PANEL_HEIGHT})">')
        parts += [*_frame(panel), *_lines(panel, names), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def ends(panel: Panel) -> tuple[float, float]:
    """The decimal logarithms between which the panel's axis runs: round ones, never the same twice."""
    values = [value for each in panel.values.values() for value in each if value > 0]
    low, high = floor(log10(min(values)) * 4) / 4, ceil(log10(max(values)) * 4) / 4
    return low, max(high, low + 0.25)


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two decimal logarithms."""
    marks = [base * 10.0**power for power in range(floor(low), ceil(high) + 1) for base in (1, 2, 5)]
    return [mark for mark in marks if low - 1e-9 <= log10(mark) <= high + 1e-9]


def steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points (value, share of the values at or below it), rising in both, at most some hundreds."""
    ranked = sorted(values)
    places = range(0, len(ranked), max(1, len(ranked) // _MAX_POINTS))
    chosen = dict.fromkeys([ranked[place] for place in places] + ranked[-1:])
    return [(value, bisect_right(ranked, value) / len(ranked)) for value in chosen]


def _x(value: float, span: tuple[float, float]) -> float:
    low, high = span
    place = log10(value) if value > 0 else low
    return _LEFT + (place - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _PANEL_HEIGHT - _BOTTOM - share * (_PANEL_HEIGHT - _TOP - _BOTTOM)


def _frame(panel: Panel) -> list[str]:
    span = ends(panel)
    parts = [f'<text x="{_LEFT}" y="{_TOP - 14}" font-weight="bold">{escape(panel.title)}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        parts.append(f'<path d="M{_LEFT} {_y(share):.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for mark in ticks(*span):
        parts.append(f'<path d="M{_x(mark, span):.1f} {_TOP}V{_PANEL_HEIGHT - _BOTTOM}" stroke="#eeeeee"/>')
        parts.append(
            f'<text x="{_x(mark, span):.1f}" y="{_PANEL_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{mark:g}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_PANEL_HEIGHT - 10}" text-anchor="middle">{escape(panel.unit)}</text>'
    )
    return parts


def _lines(panel: Panel, names: Sequence[str]) -> list[str]:
    span = ends(panel)
    parts = []
    for name, values in panel.values.items():
        if not values:
            continue
        colour = _COLOURS[names.index(name) % len(_COLOURS)]
        points = " ".join(f"{_x(value, span):.1f},{_y(share):.1f}" for value, share in steps(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        legend_y = _TOP + 12 + 18 * names.index(name)
        parts.append(f'<text x="{_WIDTH - _RIGHT + 14}" y="{legend_y}" fill="{colour}">{escape(name)}</text>')
    return parts
