"""Moves blocks between tiers beside the steps, on a thread of its own.

Owns the order in which transfers are carried out, and how little they may disturb. Decides neither what moves
nor where to: transfers come from the cache, and what became of them is told to whoever asks. Promotions (to
the device) go before demotions (away from it), between whose pieces the thread rests.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.disk_store import DiskStore, consecutive
from engine.host_pool import HostPool
from engine.kv_pool import KVPool
from engine.moves import PAIRS, Arrival
from prefix_cache.plan import BlockId, BlockRecord, Tier, Transfer

__all__ = ["DEMOTION_SHARE", "BlockMover"]

PIECE_BYTES = 4 << 20  # of blocks that are copied at once: large against a call, small against a cache
# Of the time, while there is something to demote and the CPU computes the steps. Beside demotions without end
# to the host (to the disk), steps of four decoding sequences on two cores took 97 % (49 %) longer at 0.5,
# 46 % (32 %) at 0.25 and 15 % (10 %) at 0.1: medians of six rounds, in turns, on a machine with other work.
DEMOTION_SHARE = 0.1


@dataclass(slots=True)
class _Progress:
    """Of a transfer that runs."""

    num_done: int = 0
    rested: float = 0.0  # seconds
    is_damaged: bool = False
    message: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Copies that are carried out at once."""

    sources: list[BlockId]
    targets: list[BlockId]
    records: tuple[BlockRecord, ...]  # one for each copy, or none


class BlockMover:
    """Carries out transfers over the tiers that there are, one at a time.

    Owns the disk store from here on, and closes it. With a `demotion_share` of 0.5, each piece of a demotion
    is followed by a rest of the same length.
    """

    def __init__(
        self,
        pool: KVPool,
        host: HostPool | None,
        disk: DiskStore | None,
        *,
        piece_bytes: int = PIECE_BYTES,
        demotion_share: float = DEMOTION_SHARE,
    ) -> None:
        self._is_beside_steps = True
        self._pool = pool
        self._host = host
        self._disk = disk
        self._piece_blocks = max(1, piece_bytes // pool.bytes_per_block)
        self._rest_for_work = 1 / demotion_share - 1  # seconds for each second
        self._rests_until = 0.0  # no piece of a demotion starts before
        self._is_disk_usable = disk is not None
        self._promotions: deque[Transfer] = deque()
        self._demotions: deque[Transfer] = deque()
        self._erasures: list[BlockId] = []
        self._num_erasing = 0  # of which the records are being cleared, or wait to be
        self._arrivals: list[Arrival] = []
        self._num_pending = 0
        self._is_closing = False
        self._changed = threading.Condition()
        if disk is not None:
            # Two buffers: one is filled from the disk while the other is checked and spread.
            self._staging = torch.empty(
                2,
                self._piece_blocks,
                pool.bytes_per_block,
                dtype=torch.uint8,
                pin_memory=pool.device.type == "cuda",
            )
            self._reader = ThreadPoolExecutor(1, "disk-reader")
        self._thread = threading.Thread(target=self._work, name="mover", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer; never waits."""
        tiers = {transfer.source, transfer.target}
        assert (transfer.source, transfer.target) in PAIRS, "nothing moves between these tiers"
        assert Tier.HOST not in tiers or self._host is not None, "there is no host tier"
        assert Tier.DISK not in tiers or self._disk is not None, "there is no disk tier"
        with self._changed:
            assert not self._is_closing, "the mover is closed"
            (self._promotions if transfer.target is Tier.DEVICE else self._demotions).append(transfer)
            self._num_pending += 1
            self._changed.notify_all()

    def erase(self, blocks: Sequence[BlockId]) -> None:
        """Slots of the disk that hold nothing any more; in order with demotions. Never waits."""
        assert self._disk is not None, "there is no disk tier"
        with self._changed:
            self._erasures += blocks
            self._num_erasing += len(blocks)
            self._changed.notify_all()

    def set_beside_steps(self, is_beside: bool) -> None:
        """Say whether what it takes of the machine is taken from steps: then it rests between demotions."""
        with self._changed:
            if is_beside != self._is_beside_steps:
                self._is_beside_steps = is_beside
                self._changed.notify_all()

    def arrivals(self) -> list[Arrival]:
        """What has ended since the last call; never waits."""
        with self._changed:
            arrivals, self._arrivals = self._arrivals, []
            self._num_pending -= len(arrivals)
            return arrivals

    def wait(self, seconds: float) -> None:
        """Wait until something has ended that `arrivals` has not told, at most so long."""
        with self._changed:
            if self._num_pending:
                self._changed.wait_for(lambda: self._arrivals, seconds)

    @property
    def num_pending(self) -> int:
        """Transfers submitted and not told by `arrivals`."""
        return self._num_pending

    @property
    def num_erasing(self) -> int:
        """Blocks whose records are not gone yet."""
        return self._num_erasing

    @property
    def is_disk_usable(self) -> bool:
        """Whether the disk takes blocks."""
        return self._is_disk_usable

    def close(self) -> None:
        """Finish the transfer that runs, drop the rest, let go of the disk's folder."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._disk is not None:
            self._reader.shutdown()
            self._disk.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closing or self._promotions or self._erasures or self._demotions
                )
                if self._is_closing:
                    return
                # Erasures go before all demotions: a slot that is erased is written only by one that comes
                # later, since whoever wrote it held it until it was done.
                erasures, self._erasures = self._erasures, []
                transfer = None
                if not erasures:
                    transfer = self._promotions.popleft() if self._promotions else self._demotions.popleft()
            if transfer is not None:
                self._carry_out(transfer)
            else:
                self._erase(erasures)
                with self._changed:
                    self._num_erasing -= len(erasures)
                    self._changed.notify_all()

    def _carry_out(self, transfer: Transfer) -> None:
        progress, started = _Progress(), time.perf_counter()
        try:
            if transfer.target is Tier.DISK:
                self._to_disk(transfer, progress)
            elif transfer.target is Tier.HOST:
                self._to_host(transfer, progress)
            elif transfer.source is Tier.DISK:
                self._from_disk(transfer, progress)
            else:
                self._from_host(transfer, progress)
        except Exception as error:  # noqa: BLE001 - whatever it is, both ends must come free again
            progress.message = f"{type(error).__name__}: {error}"
        arrival = Arrival(
            transfer,
            progress.num_done,
            time.perf_counter() - started - progress.rested,
            progress.num_done * self._pool.bytes_per_block,
            progress.is_damaged,
            progress.message,
        )
        with self._changed:
            self._arrivals.append(arrival)
            self._changed.notify_all()

    def _to_host(self, transfer: Transfer, progress: _Progress) -> None:
        for piece in self._with_rests(self._pieces(transfer), progress):
            for run in consecutive(piece.targets):
                self._pool.gather(piece.sources[run], self._in_host(piece.targets[run]))
            progress.num_done += len(piece.sources)

    def _from_host(self, transfer: Transfer, progress: _Progress) -> None:
        runs = (
            (piece.targets[run], self._in_host(piece.sources[run]))
            for piece in self._pieces(transfer)
            for run in consecutive(piece.sources)
        )
        for num_blocks in self._pool.scatter_runs(runs):
            progress.num_done += num_blocks

    def _to_disk(self, transfer: Transfer, progress: _Progress) -> None:
        assert self._disk is not None
        if not self._is_disk_usable:
            progress.message = "the disk takes no more blocks"
            return
        try:
            for piece in self._with_rests(self._pieces(transfer), progress):
                self._write(piece, transfer.source)
        except OSError as error:
            self._give_up_disk(error, progress)
        finally:
            progress.num_done = self._commit(progress)

    def _commit(self, progress: _Progress) -> int:
        assert self._disk is not None
        try:
            return self._disk.commit()
        except OSError as error:
            self._give_up_disk(error, progress)
            return 0

    def _write(self, piece: _Piece, source: Tier) -> None:
        assert self._disk is not None
        if source is Tier.DEVICE:
            payloads = self._staging[0, : len(piece.sources)]
            self._pool.gather(piece.sources, payloads)
            self._disk.write(piece.targets, piece.records, payloads.numpy())
            return
        for run in consecutive(piece.sources):
            payloads = self._in_host(piece.sources[run])
            self._disk.write(piece.targets[run], piece.records[run], payloads.numpy())

    def _from_disk(self, transfer: Transfer, progress: _Progress) -> None:
        assert self._disk is not None
        pieces = self._pieces(transfer)
        buffers = [self._staging[index % 2, : len(piece.sources)] for index, piece in enumerate(pieces)]
        reads = (
            self._reader.submit(self._disk.read, piece.sources, buffer.numpy())
            for piece, buffer in zip(pieces, buffers, strict=True)
        )
        ahead = next(reads, None)
        try:
            for piece, buffer in zip(pieces, buffers, strict=True):
                assert ahead is not None
                num_read = ahead.result()
                ahead = next(reads, None)
                num_sound = self._disk.check(piece.sources, piece.records, buffer[:num_read].numpy())
                self._pool.scatter(piece.targets[:num_sound], buffer[:num_sound])
                progress.num_done += num_sound
                if num_sound < len(piece.sources):
                    progress.is_damaged = True
                    progress.message = f"what lies in slot {piece.sources[num_sound]} is damaged or another's"
                    self._erase([piece.sources[num_sound]])
                    return
        finally:
            if ahead is not None:
                ahead.result()  # only now may its buffer be used again

    def _erase(self, blocks: Sequence[BlockId]) -> None:
        assert self._disk is not None
        try:
            self._disk.erase(blocks)
        except OSError as error:
            self._give_up_disk(error, _Progress())

    def _give_up_disk(self, error: OSError, progress: _Progress) -> None:
        progress.message = f"the disk takes no more blocks: {error}"
        if self._is_disk_usable:
            self._is_disk_usable = False
            print(f"stemma: {progress.message}; what it holds can still be read", file=sys.stderr)

    def _pieces(self, transfer: Transfer) -> list[_Piece]:
        starts = range(0, len(transfer.copies), self._piece_blocks)
        pieces = []
        for span in (slice(start, start + self._piece_blocks) for start in starts):
            copies = transfer.copies[span]
            sources, targets = [copy.source_block for copy in copies], [copy.target_block for copy in copies]
            pieces.append(_Piece(sources, targets, transfer.records[span]))
        return pieces

    def _with_rests(self, pieces: list[_Piece], progress: _Progress) -> Iterator[_Piece]:
        """A demotion's pieces, each when the rest after the one before it is over."""
        for piece in pieces:
            started = time.perf_counter()
            self._rest()
            resumed = time.perf_counter()
            progress.rested += resumed - started
            yield piece
            ended = time.perf_counter()
            self._rests_until = ended + (ended - resumed) * self._rest_for_work

    def _rest(self) -> None:
        """Let the steps have the machine for a while. Promotions that come meanwhile are carried out."""
        while True:
            with self._changed:
                left = self._rests_until - time.perf_counter()
                self._changed.wait_for(
                    lambda: self._is_closing or self._promotions or not self._is_beside_steps, left
                )
                if self._is_closing or not self._promotions:
                    return
                promotion = self._promotions.popleft()
            self._carry_out(promotion)

    def _in_host(self, run: Sequence[BlockId]) -> torch.Tensor:
        """Neighbouring blocks of the host's: [len(run), bytes_per_block]."""
        assert self._host is not None
        return self._host.blocks[run[0] : run[-1] + 1]
