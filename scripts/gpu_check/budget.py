"""How long each part of a run may take, so that none takes the time of the others."""

import time
from collections.abc import Callable, Mapping
from itertools import accumulate

__all__ = ["Budget"]


class Budget:
    """Begins when it is made. What a part leaves is there for those after it, in the order given."""

    def __init__(
        self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert abs(sum(shares.values()) - 1) < 1e-9, "the parts share all of the time"
        self._clock = clock
        self._started = clock()
        ends = accumulate(shares.values())
        self._ends = {part: seconds * end for part, end in zip(shares, ends, strict=True)}

    def has_time(self, part: str) -> bool:
        """Whether something of this part may still begin."""
        return self._clock() - self._started < self._ends[part]
