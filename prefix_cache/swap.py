"""Swap or recompute: where to stop bringing blocks back from colder tiers, by this machine's own rates.

A prefix that lies on colder tiers is promoted up to one cut point and computed after it. Moving n tokens
costs their bytes over the rate between the two tiers; computing them costs n over the prefill rate. Both are
linear, so the best cut is one of the ends of the pieces.
"""

from collections.abc import Sequence
from typing import Literal

from prefix_cache.plan import Tier

__all__ = ["SwapMode", "SwapRates"]

SwapMode = Literal["auto", "always", "never"]

_SETUP_SECONDS = 0.002  # of one transfer: queue, thread, first access
_WEIGHT = 0.2  # of the newest measurement


class SwapRates:
    """Rates as last measured, and the choice that follows from them."""

    def __init__(
        self,
        bytes_per_token: float,
        rates: dict[tuple[Tier, Tier], float],
        *,
        prefill_rate: float | None = None,
        mode: SwapMode = "auto",
    ) -> None:
        """`rates` in bytes a second by source and target, `prefill_rate` in tokens a second; None: unknown
        yet, and so taken for slower than any copy.
        """
        self.rates = dict(rates)
        self.prefill_rate = prefill_rate
        self._bytes_per_token = bytes_per_token
        self._mode = mode

    def note_transfer(self, source: Tier, target: Tier, num_bytes: int, seconds: float) -> None:
        """A transfer took so long."""
        if num_bytes and seconds > 0.0:
            measured = num_bytes / seconds
            before = self.rates.get((source, target), measured)
            self.rates[source, target] = before + _WEIGHT * (measured - before)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step that mostly computed prompts took so long."""
        if num_tokens and seconds > 0.0:
            measured = num_tokens / seconds
            before = self.prefill_rate or measured
            self.prefill_rate = before + _WEIGHT * (measured - before)

    def choose_cut(self, pieces: Sequence[tuple[Tier, int]]) -> int:
        """How many of the pieces to promote: each is a tier and a number of tokens, in path order."""
        if self._mode == "always":
            return len(pieces)
        if self._mode == "never":
            return 0
        costs = [self._cost(pieces, cut) for cut in range(len(pieces) + 1)]
        return costs.index(min(costs))

    def _cost(self, pieces: Sequence[tuple[Tier, int]], cut: int) -> float:
        seconds = sum(num_tokens for _, num_tokens in pieces[cut:]) / (self.prefill_rate or 1e-9)
        for tier, num_tokens in pieces[:cut]:
            rate = self.rates.get((tier, Tier.DEVICE))
            seconds += _SETUP_SECONDS + (num_tokens * self._bytes_per_token / rate if rate else 0.0)
        return seconds
