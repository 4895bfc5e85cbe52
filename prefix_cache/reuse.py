"""How soon blocks are asked for again, learned from what became of those before them.

Owns, by how often blocks were used and how long they have rested since: how many were used again, and for
how many block-seconds they might have been. The ratio is the rate of reuse. Blocks still at rest count for as
long as they have rested, so nothing is biased by what has not ended yet. All counts fade: they follow change.
"""

from bisect import bisect_right
from collections import deque
from itertools import pairwise
from math import exp

from prefix_cache.history import Cohort

__all__ = ["BOUNDS", "NUM_BUCKETS", "ReuseRates", "bucket_of"]

# Where buckets of age begin, in seconds: two for each doubling, the last one at more than a week.
BOUNDS = (0.0, *(2.0 ** (step / 2) for step in range(40)))
NUM_BUCKETS = len(BOUNDS)
_WIDTHS = (*(end - start for start, end in pairwise(BOUNDS)), BOUNDS[-1])

# The least part of a bucket that counts as rested: reuse just where a bucket begins must have a rate too.
_MOMENT = 0.01

_FADING = 0.98  # what is left of all counts after each `refresh`


def bucket_of(age: float) -> int:
    """The bucket of an age in seconds; what is used a moment from now counts as just used."""
    return max(0, bisect_right(BOUNDS, age) - 1)


class ReuseRates:
    """Counts for every number of uses up to `max_uses`, which stands for all above too."""

    def __init__(self, max_uses: int) -> None:
        """Knows nothing: all values are 0.0 until `refresh`."""
        self._reused = [[0.0] * NUM_BUCKETS for _ in range(max_uses + 1)]  # blocks
        self._rested = [[0.0] * NUM_BUCKETS for _ in range(max_uses + 1)]  # block-seconds
        self._resting: list[list[deque[Cohort]]] = [
            [deque() for _ in range(NUM_BUCKETS)] for _ in range(max_uses + 1)
        ]
        self._values = [[0.0] * NUM_BUCKETS for _ in range(max_uses + 1)]

    def value(self, num_uses: int, bucket: int) -> float:
        """Reuses a second of keeping such a block for the best time: the highest mean rate from this age on.

        This is the Gittins index of a block that is worth one when it is used and nothing after.
        """
        return self._values[num_uses][bucket]

    def add(self, cohort: Cohort) -> None:
        """Follow blocks that were just used."""
        self._resting[cohort.num_uses][0].append(cohort)

    def advance(self, now: float) -> None:
        """Let all cohorts grow older."""
        for rested, buckets in zip(self._rested, self._resting, strict=True):
            for bucket in range(NUM_BUCKETS - 2, -1, -1):
                waiting = buckets[bucket]
                while waiting and now - waiting[0].last_used >= BOUNDS[bucket + 1]:
                    cohort = waiting.popleft()
                    reached = bucket_of(now - cohort.last_used)
                    for passed in range(bucket, reached):
                        rested[passed] += cohort.num_blocks * _WIDTHS[passed]
                    if cohort.num_blocks:
                        buckets[reached].append(cohort)

    def end_rest(self, cohort: Cohort, num_blocks: int, now: float, *, is_reused: bool) -> None:
        """Blocks of a cohort were used again, or are not followed any longer."""
        bucket = bucket_of(now - cohort.last_used)
        seconds = max(now - cohort.last_used - BOUNDS[bucket], _MOMENT * _WIDTHS[bucket])
        self._rested[cohort.num_uses][bucket] += num_blocks * seconds
        if is_reused:
            self._reused[cohort.num_uses][bucket] += num_blocks

    def refresh(self, now: float) -> None:
        """Make new values of all that is known, and let it fade a little. Advance first."""
        for num_uses, (reused, rested) in enumerate(zip(self._reused, self._rested, strict=True)):
            rates = []
            for bucket, waiting in enumerate(self._resting[num_uses]):
                unended = sum(item.num_blocks * (now - item.last_used - BOUNDS[bucket]) for item in waiting)
                block_seconds = rested[bucket] + unended
                rates.append(reused[bucket] / block_seconds if block_seconds > 0 else 0.0)
            self._values[num_uses] = [_best_mean_rate(rates, bucket) for bucket in range(NUM_BUCKETS)]
            for bucket in range(NUM_BUCKETS):
                reused[bucket] *= _FADING
                rested[bucket] *= _FADING


def _best_mean_rate(rates: list[float], first: int) -> float:
    """The highest ratio of expected reuses to expected seconds, over all times to give up."""
    best = reuses = seconds = 0.0
    still_resting = 1.0
    for rate, width in zip(rates[first:], _WIDTHS[first:], strict=True):
        ending = still_resting * (1.0 - exp(-rate * width))
        reuses += ending
        seconds += ending / rate if ending else still_resting * width
        still_resting -= ending
        best = max(best, reuses / seconds)
    return best
