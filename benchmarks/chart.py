"""A line chart as SVG: values over sizes, and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["line_chart"]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 20, 50
_COLOURS = ("#1f5fa8", "#c2410c", "#3f7d3a", "#6b6b6b", "#7e3794")


def line_chart(
    sizes: Sequence[int | str],
    lines: Mapping[str, Sequence[float | None]],
    *,
    x_label: str = "blocks of the cache",
    write: Callable[[float], str] = "{:.1%}".format,
) -> str:
    """One line a name, of values from 0 up, one a size; None where there is none. Sizes stand at even
    distances, in their order; values are written as `write` has it.
    """
    known = {
        name: [(place, value) for place, value in enumerate(values) if value is not None]
        for name, values in lines.items()
    }
    top = max((value for values in known.values() for _, value in values), default=0.0) or 1.0
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(sizes) - 1)

    def x(place: int) -> float:
        return _LEFT + place * step

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for quarter in range(5):
        share = top * quarter / 4
        parts.append(f'<path d="M{_LEFT} {y(share):.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{write(share)}</text>')
    for place, size in enumerate(sizes):
        parts.append(
            f'<text x="{x(place):.1f}" y="{_HEIGHT - 28}" text-anchor="middle">{_label(size)}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    for number, (name, shares) in enumerate(known.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(place):.1f},{y(share):.1f}" for place, share in shares)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(place):.1f}" cy="{y(share):.1f}" r="3" fill="{colour}"/>'
            for place, share in shares
        ]
        legend_x, legend_y = _WIDTH - _RIGHT + 14, _TOP + 12 + 18 * number
        parts.append(f'<text x="{legend_x}" y="{legend_y}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _label(size: int | str) -> str:
    return f"{size:,}" if isinstance(size, int) else escape(size)
