"""A mover that moves nothing: it says at once, or when told, that everything was carried out."""

from collections.abc import Sequence

from engine.moves import Arrival, ColderTiers
from prefix_cache.plan import BlockId, Tier, Transfer


class StillMover:
    """Implements engine.moves.Mover for runners without memory. While `is_stuck`, nothing ends."""

    def __init__(self) -> None:
        self.is_stuck = False
        self.is_beside_steps = False
        self.num_erasing = 0
        self.is_disk_usable = True
        self.fails_with: str | None = None
        self.submitted: list[Transfer] = []
        self.erased: list[BlockId] = []
        self.num_closed = 0
        self._pending: list[Transfer] = []

    def submit(self, transfer: Transfer) -> None:
        self.submitted.append(transfer)
        self._pending.append(transfer)

    def erase(self, blocks: Sequence[BlockId]) -> None:
        self.erased += blocks

    def set_beside_steps(self, is_beside: bool) -> None:
        self.is_beside_steps = is_beside

    def arrivals(self) -> list[Arrival]:
        if self.is_stuck:
            return []
        ended, self._pending = self._pending, []
        if self.fails_with is not None:
            return [Arrival(transfer, 0, 0.0, 0, message=self.fails_with) for transfer in ended]
        return [Arrival(transfer, len(transfer.copies), 0.5, 1000) for transfer in ended]

    def wait(self, seconds: float) -> None:
        pass

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        self.num_closed += 1


def still_tiers(mover: StillMover, *, host: int = 0, disk: int = 0) -> ColderTiers:
    """Colder tiers of so many blocks."""
    return ColderTiers(
        num_host_blocks=host,
        num_disk_blocks=disk,
        records={},
        fingerprint=b"scripted",
        mover=mover,
        bytes_per_block=64,
        rates={(Tier.HOST, Tier.DEVICE): 1e9, (Tier.DISK, Tier.DEVICE): 1e8},
    )
