"""Transfers between tiers: from the cache that plans them to the mover that carries them out, and back.

Owns what is counted of movements and the rates by which the cache chooses between swapping and computing. At
most a few transfers are out at once: what is not out holds nothing.
"""

import sys
from dataclasses import dataclass

from engine.messages import MoveStats
from engine.moves import ColderTiers
from prefix_cache.plan import Tier
from prefix_cache.swap import SwapRates
from prefix_cache.tiers import TieredCache

__all__ = ["Traffic"]

_MAX_PENDING = 2  # one that runs, and one so that the worker never waits for the next step
_DISK_IS_OFF = "the disk tier takes nothing more: it was full or failed"


@dataclass(slots=True)
class _Count:
    num_blocks: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    num_failed: int = 0


class Traffic:
    """What moves between the tiers of one cache."""

    def __init__(self, cache: TieredCache, tiers: ColderTiers, rates: SwapRates) -> None:
        self._cache = cache
        self._mover = tiers.mover
        self._rates = rates
        self._counts: dict[tuple[Tier, Tier], _Count] = {}
        self._has_disk = tiers.num_disk_blocks > 0

    @property
    def is_moving(self) -> bool:
        """Whether anything is out, or waits to be."""
        return self._mover.num_pending > 0 or self._cache.num_waiting_writes > 0 or self.is_erasing

    @property
    def is_erasing(self) -> bool:
        """Whether records of the disk are not gone yet that should be."""
        return self._mover.num_erasing > 0 or self._cache.is_forgetting

    @property
    def is_disk_usable(self) -> bool:
        """Whether the disk takes blocks."""
        return self._mover.is_disk_usable

    @property
    def stats(self) -> list[MoveStats]:
        """What has moved since the start."""
        return [
            MoveStats(
                source=source.value,
                target=target.value,
                num_blocks=count.num_blocks,
                num_bytes=count.num_bytes,
                seconds=count.seconds,
                num_failed=count.num_failed,
            )
            for (source, target), count in self._counts.items()
        ]

    def take_arrivals(self, now: float) -> bool:
        """Tell the cache what has ended; True if anything has."""
        arrivals = self._mover.arrivals()
        for arrival in arrivals:
            transfer = arrival.transfer
            count = self._counts.setdefault((transfer.source, transfer.target), _Count())
            count.num_blocks += arrival.num_done
            count.num_bytes += arrival.num_bytes
            count.seconds += arrival.seconds
            if arrival.message is not None:
                count.num_failed += 1
                print(
                    f"stemma: a move from {transfer.source.value} to {transfer.target.value} ended early: "
                    f"{arrival.message}",
                    file=sys.stderr,
                )
            self._rates.note_transfer(transfer.source, transfer.target, arrival.num_bytes, arrival.seconds)
            self._cache.finish(transfer, arrival.num_done, now, is_damaged=arrival.is_damaged)
        if arrivals and self._has_disk and not self._mover.is_disk_usable:
            self._cache.refuse_writes(Tier.DISK, _DISK_IS_OFF)
        return bool(arrivals)

    def send(self, now: float, *, is_busy: bool) -> None:
        """Hand out what the cache has planned, as far as the worker can use it. `is_busy` says that steps run
        beside it.
        """
        self._mover.set_beside_steps(is_busy)
        erased = self._cache.take_erased()
        if erased:
            # Before any transfer that may write the same blocks anew.
            self._mover.erase(erased)
        for transfer in self._cache.take_transfers(_MAX_PENDING - self._mover.num_pending, now):
            self._mover.submit(transfer)

    def wait(self, seconds: float) -> None:
        """Wait until something has ended, at most so long."""
        self._mover.wait(seconds)

    def close(self) -> None:
        """Let go of the tiers' memory and files."""
        self._mover.close()
