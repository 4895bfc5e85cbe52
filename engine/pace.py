"""How long steps take on this machine, learned from those that ran.

Owns one estimate: seconds by number of tokens. From it follow how many tokens a step may compute within a
target time, and whether computing a few more tokens at once pays.
"""

from collections.abc import Mapping
from math import inf

__all__ = ["StepPace"]

_NEWS = 0.2  # weight of a new measurement against all before it
_MAX_SURPRISE = 3.0  # a step that took longer than so many times what was expected was disturbed by others


class StepPace:
    """Means of measured steps, in classes of sizes that double, and straight lines between them."""

    def __init__(self, target_seconds: float, measured: Mapping[int, float]) -> None:
        """`measured`: seconds of steps by their numbers of tokens, to begin with."""
        self._target = target_seconds
        self._means: dict[int, tuple[float, float]] = {}  # class -> mean (tokens, seconds)
        for num_tokens, seconds in sorted(measured.items()):
            self._means[_class(num_tokens)] = (float(num_tokens), seconds)

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step has run."""
        if num_tokens < 1:
            return
        place = _class(num_tokens)
        if place not in self._means:
            self._means[place] = (float(num_tokens), seconds)
            return
        mean_tokens, mean_seconds = self._means[place]
        seconds = min(seconds, _MAX_SURPRISE * mean_seconds)
        self._means[place] = (
            mean_tokens + _NEWS * (num_tokens - mean_tokens),
            mean_seconds + _NEWS * (seconds - mean_seconds),
        )

    def seconds(self, num_tokens: int) -> float:
        """What a step of so many tokens is expected to take; 0 while nothing is known. Never falls."""
        points = self._points()
        if not points:
            return 0.0
        low = (0.0, points[0][1])
        for high in points:
            if num_tokens <= high[0]:
                share = (num_tokens - low[0]) / (high[0] - low[0])
                return min(low[1] + (high[1] - low[1]) * share, high[1])  # not above it by rounding
            low = high
        return low[1] + _slope(points) * (num_tokens - low[0])

    def budget(self) -> int | None:
        """The most tokens that a step is expected to compute within the target; None while nothing is
        known.
        """
        points = self._points()
        if not points:
            return None
        low = (0.0, min(points[0][1], self._target))
        for high in points:
            if high[1] > self._target:
                share = (self._target - low[1]) / (high[1] - low[1])
                return max(int(low[0] + share * (high[0] - low[0])), 1)
            low = high
        slope = _slope(points)
        beyond = (self._target - low[1]) / slope if slope > 0 else inf
        # Half as much again as was ever tried: so a guess about larger steps is soon a measurement.
        return int(min(low[0] + beyond, 1.5 * low[0]))

    def _points(self) -> list[tuple[float, float]]:
        """The means, by tokens; where a larger step seemed faster, as slow as the smaller one."""
        points: list[tuple[float, float]] = []
        for tokens, seconds in sorted(self._means.values()):
            if points and tokens - points[-1][0] < 1:
                continue
            points.append((tokens, max(seconds, points[-1][1] if points else 0.0)))
        return points


def _class(num_tokens: int) -> int:
    return num_tokens.bit_length()


def _slope(points: list[tuple[float, float]]) -> float:
    """Seconds a token at the largest sizes."""
    if len(points) == 1:
        return points[0][1] / points[0][0]
    (tokens, seconds), (more, longer) = points[-2:]
    return (longer - seconds) / (more - tokens)
