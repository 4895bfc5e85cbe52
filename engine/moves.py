"""What is said between the core and whoever moves blocks between tiers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prefix_cache.plan import BlockId, BlockRecord, Tier, Transfer

__all__ = ["PAIRS", "Arrival", "ColderTiers", "Mover"]

# Source and target of everything that moves.
PAIRS = (
    (Tier.DEVICE, Tier.HOST),
    (Tier.HOST, Tier.DEVICE),
    (Tier.DEVICE, Tier.DISK),
    (Tier.HOST, Tier.DISK),
    (Tier.DISK, Tier.DEVICE),
)


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """How a transfer ended."""

    transfer: Transfer
    num_done: int  # leading copies carried out, all or fewer
    seconds: float  # what the work took, without waiting in the queue and resting
    num_bytes: int
    is_damaged: bool = False  # the source record of copy number num_done was damaged or another's
    message: str | None = None  # why it ended early, for the log


class Mover(Protocol):
    """Whatever carries out transfers: a thread, or a test's double. One thread calls it."""

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer; never waits."""
        ...

    def erase(self, blocks: Sequence[BlockId]) -> None:
        """Slots of the disk that hold nothing any more, before any demotion submitted later. Never waits."""
        ...

    def set_beside_steps(self, is_beside: bool) -> None:
        """Say whether what it takes of the machine is taken from steps: then it rests between demotions."""
        ...

    def arrivals(self) -> list[Arrival]:
        """What has ended since the last call; never waits."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something has ended that `arrivals` has not told, at most so long.

        Returns at once when nothing is pending.
        """
        ...

    @property
    def num_pending(self) -> int:
        """Transfers submitted and not told by `arrivals`."""
        ...

    @property
    def num_erasing(self) -> int:
        """Blocks whose records are not gone yet."""
        ...

    @property
    def is_disk_usable(self) -> bool:
        """Whether the disk takes blocks: False for ever after it was full or failed, or if there is none."""
        ...

    def close(self) -> None:
        """Finish the transfer that runs, drop the rest, let go of the disk's folder."""
        ...


@dataclass(frozen=True, slots=True)
class ColderTiers:
    """What the core is given beside the runner."""

    num_host_blocks: int  # 0: no host tier
    num_disk_blocks: int  # 0: no disk tier
    records: Mapping[BlockId, BlockRecord]  # what the disk held at the start and can be used
    fingerprint: bytes  # of model and layout; empty without a disk tier
    mover: Mover
    bytes_per_block: int
    rates: Mapping[tuple[Tier, Tier], float]  # bytes a second, for each pair that can be moved between
    num_damaged: int = 0  # blocks that the disk held at the start and that were damaged
    prefill_rate: float | None = None  # tokens a second that prompts are computed at; None: not known yet
