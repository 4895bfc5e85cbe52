"""What moving blocks between tiers costs on this machine, measured once at the start."""

import shutil
from pathlib import Path

import torch

from engine.disk_store import DiskStore
from engine.fingerprint import FINGERPRINT_BYTES
from engine.host_pool import HostPool
from engine.kv_pool import KVPool
from engine.mover import BlockMover
from engine.moves import PAIRS, Mover
from prefix_cache.hashing import NAME_BYTES
from prefix_cache.plan import BlockCopy, BlockId, BlockRecord, Tier, Transfer

__all__ = ["UNMEASURED", "measure_rates"]

UNMEASURED = 1e8  # bytes a second, where a disk is full before anything can be tried on it: a slow one
_MEASURED_BYTES = 8 << 20
_SCRATCH = "measured"  # a folder within the disk tier's, while rates are measured


def measure_rates(pool: KVPool, host: HostPool | None, folder: Path | None) -> dict[tuple[Tier, Tier], float]:
    """Bytes a second between each two tiers that there are. Overwrites the first few blocks of both pools.

    For the disk, what is read has just been written and was dropped from memory; what is written is durable.
    `folder` is the disk tier's; what it is measured with is gone afterwards.
    """
    num_blocks = min(max(1, _MEASURED_BYTES // pool.bytes_per_block), pool.num_blocks)
    if host is not None:
        num_blocks = min(num_blocks, host.num_blocks)
    tiers = {Tier.DEVICE} | ({Tier.HOST} if host else set()) | ({Tier.DISK} if folder else set())
    # Memory that was never touched would be measured together with the system's giving it.
    pool.scatter(_ids(num_blocks), torch.zeros(num_blocks, pool.bytes_per_block, dtype=torch.uint8))
    if host is not None:
        host.blocks[:num_blocks].zero_()
    disk = None if folder is None else _open_scratch(folder, pool, num_blocks)
    mover = BlockMover(pool, host, disk, demotion_share=1.0)
    try:
        return {
            pair: UNMEASURED
            if Tier.DISK in pair and disk is None
            else _measure(mover, disk, pair, num_blocks)
            for pair in PAIRS
            if tiers.issuperset(pair)
        }
    finally:
        mover.close()
        if folder is not None:
            shutil.rmtree(folder / _SCRATCH, ignore_errors=True)


def _open_scratch(folder: Path, pool: KVPool, num_blocks: int) -> DiskStore | None:
    """A store to try the disk with, or None if the disk has no room for it: it may still be read."""
    shutil.rmtree(folder / _SCRATCH, ignore_errors=True)
    try:
        return DiskStore(
            folder / _SCRATCH,
            bytes(FINGERPRINT_BYTES),
            num_blocks=num_blocks,
            bytes_per_block=pool.bytes_per_block,
            block_size=pool.block_size,
        )
    except OSError:
        return None


def _measure(mover: Mover, disk: DiskStore | None, pair: tuple[Tier, Tier], num_blocks: int) -> float:
    source, target = pair
    copies = tuple(BlockCopy(source, block, target, block, num_tokens=0) for block in _ids(num_blocks))
    record = BlockRecord(b"", bytes(NAME_BYTES), bytes(NAME_BYTES), b"")
    if source is Tier.DISK and disk is not None:
        disk.drop_pages()
    mover.submit(Transfer(source, target, copies, (record,) * num_blocks if Tier.DISK in pair else ()))
    while not (arrivals := mover.arrivals()):
        mover.wait(60.0)
    (arrival,) = arrivals
    return arrival.num_bytes / arrival.seconds if arrival.num_done == num_blocks else UNMEASURED


def _ids(num_blocks: int) -> list[BlockId]:
    return [BlockId(index) for index in range(num_blocks)]
