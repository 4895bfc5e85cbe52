"""The mover: blocks arrive bit for bit, in the right order, and what fails says how far it came."""

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import disk_store
from engine.disk_store import DiskStore
from engine.host_pool import HostPool
from engine.kv_pool import KVPool
from engine.loading import load_runner, load_tiers
from engine.messages import EngineConfig
from engine.models.config import ModelConfig
from engine.move_rates import UNMEASURED, measure_rates
from engine.mover import BlockMover
from engine.moves import Arrival
from engine.staged_moves import Cut, StagedMoves
from kernels import Kernels
from prefix_cache.plan import BlockCopy, BlockId, BlockRecord, Tier, Transfer
from prefix_cache.tokens import pack
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.slow_lanes import Machine

CONFIG = ModelConfig(
    family="llama",
    vocab_size=11,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_length=64,
    rms_eps=1e-5,
    rope_theta=10000.0,
)
DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK
NUM_BLOCKS = 24
NO_END = 1e-9  # a share of demotions whose rests do not end while a test runs
PATIENCE = 60.0  # seconds before a test that waits has failed


class GatedPool(KVPool):
    """A pool of noise whose reading waits until it may, and that can be made to fail."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(
            CONFIG,
            NUM_BLOCKS,
            16,
            dtype=dtype,
            device=torch.device("cpu"),
            operations=Kernels.cpu(),
        )
        generator = torch.Generator().manual_seed(5)
        self.keys.normal_(generator=generator)
        self.values.normal_(generator=generator)
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_reading = threading.Event()
        self.errors: list[Exception | None] = []  # what comes of the next reads

    def gather(self, blocks: Sequence[BlockId], out: torch.Tensor) -> None:
        self.is_reading.set()
        assert self.may_read.wait(PATIENCE)
        if self.errors and (error := self.errors.pop(0)):
            raise error
        super().gather(blocks, out)

    def stage(self, machine: Machine) -> None:
        """From here on move blocks as a GPU does."""
        self._staged = StagedMoves(
            self._bytes,
            Kernels.reference(),  # which move some layers alone, as a GPU's do
            bus=machine.bus,
            kernels=machine.kernels,
            cut=Cut(copy_bytes=2000),
        )

    def break_after(self, num_runs: int) -> None:
        """Fail to write the blocks of the run after so many."""

        def scatter(*tensors: torch.Tensor) -> None:
            nonlocal num_runs
            num_runs -= 1
            if num_runs < 0:
                raise RuntimeError("no more")
            Kernels.cpu().scatter_blocks(*tensors)

        self._operations = replace(self._operations, scatter_blocks=scatter)

    def content(self, blocks: Sequence[int]) -> torch.Tensor:
        """The bytes of blocks: [len(blocks), bytes_per_block]."""
        out = torch.empty(len(blocks), self.bytes_per_block, dtype=torch.uint8)
        super().gather([BlockId(block) for block in blocks], out)
        return out


class Tiers:
    """A pool, a host tier and a disk tier, and the mover between them: two blocks a piece."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, share: float = 1.0) -> None:
        self.pool = GatedPool(dtype)
        self.folder = folder
        self.host = HostPool(NUM_BLOCKS, self.pool.bytes_per_block, is_pinned=False)
        self.disk = self.open_disk()
        self.mover = BlockMover(
            self.pool,
            self.host,
            self.disk,
            piece_bytes=2 * self.pool.bytes_per_block + 1,
            demotion_share=share,
        )

    def open_disk(self) -> DiskStore:
        return DiskStore(
            self.folder,
            b"m" * 16,
            num_blocks=NUM_BLOCKS,
            bytes_per_block=self.pool.bytes_per_block,
            block_size=16,
        )

    def submit(self, source: Tier, target: Tier, pairs: dict[int, int], records: str = "") -> Transfer:
        """Move blocks from keys to values. Records are named by a letter each, by default a, b, c..."""
        copies = tuple(
            BlockCopy(source, BlockId(first), target, BlockId(second), 16) for first, second in pairs.items()
        )
        letters = (records or "abcdefghijklmnopqrstuvwxyz")[: len(copies)]
        told = tuple(record(letter) for letter in letters) if DISK in (source, target) else ()
        transfer = Transfer(source, target, copies, told)
        self.mover.submit(transfer)
        return transfer

    def next_arrivals(self) -> list[Arrival]:
        self.mover.wait(PATIENCE)
        return self.mover.arrivals()

    def move(self, source: Tier, target: Tier, pairs: dict[int, int], records: str = "") -> Arrival:
        transfer = self.submit(source, target, pairs, records)
        (arrival,) = self.next_arrivals()
        assert arrival.transfer is transfer
        return arrival

    def reopened_records(self) -> dict[BlockId, BlockRecord]:
        """Close everything and look at what the disk holds."""
        self.mover.close()
        disk = self.open_disk()
        disk.close()
        return disk.records


def record(letter: str) -> BlockRecord:
    byte = letter.encode()
    return BlockRecord(byte * 32, byte * 16, byte * 16, pack([ord(letter)] * 16))


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    tiers = Tiers(tmp_path)
    yield tiers
    tiers.mover.close()


ROUTES = {
    "host": (HOST,),
    "disk": (DISK,),
    "host and disk": (HOST, DISK),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("route", ROUTES)
def test_blocks_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, route: str) -> None:
    tiers = Tiers(tmp_path, dtype)
    places = [7, 3, 4, 5, 9, 8, 1]
    expected = tiers.pool.content(places)
    at: Tier = DEVICE

    for tier in (*ROUTES[route], DEVICE):
        there = [(place * 5 + 2) % NUM_BLOCKS for place in places] if tier is DISK else places[::-1]
        there = [NUM_BLOCKS - 1 - place for place in places] if tier is DEVICE else there
        arrival = tiers.move(at, tier, dict(zip(places, there, strict=True)))
        assert (arrival.num_done, arrival.is_damaged, arrival.message) == (7, False, None)
        at, places = tier, there

    assert torch.equal(tiers.pool.content(places), expected)
    tiers.mover.close()


def test_blocks_come_back_by_way_of_lanes_beside_the_steps(tiers: Tiers) -> None:
    machine = Machine()
    tiers.pool.stage(machine)
    blocks = {2: 3, 5: 9, 6: 10, 1: 11, 8: 20}
    expected = tiers.pool.content([*blocks])

    tiers.move(DEVICE, HOST, blocks)
    tiers.move(HOST, DISK, dict(zip(blocks.values(), (4, 5, 6, 7, 9), strict=True)))
    back = tiers.move(HOST, DEVICE, dict(zip(blocks.values(), (21, 12, 13, 22, 14), strict=True)))
    again = tiers.move(DISK, DEVICE, dict(zip((4, 5, 6, 7, 9), (0, 1, 4, 15, 16), strict=True)))

    assert (back.num_done, again.num_done) == (5, 5)
    assert torch.equal(tiers.pool.content([21, 12, 13, 22, 14]), expected)
    assert torch.equal(tiers.pool.content([0, 1, 4, 15, 16]), expected)
    assert machine.is_idle


def test_a_promotion_that_fails_says_how_many_blocks_are_there(tiers: Tiers) -> None:
    tiers.pool.break_after(2)

    arrival = tiers.move(HOST, DEVICE, {3: 1, 4: 2, 7: 3, 9: 4, 10: 5})

    assert arrival.num_done == 3
    assert arrival.message == "RuntimeError: no more"


def test_other_blocks_stay_as_they_were(tiers: Tiers) -> None:
    others = [block for block in range(NUM_BLOCKS) if block not in (20, 21, 22)]
    before = tiers.pool.content(others)

    tiers.move(DEVICE, DISK, {1: 1, 2: 2, 3: 3})
    tiers.move(DISK, DEVICE, {1: 20, 2: 21, 3: 22})

    assert torch.equal(tiers.pool.content(others), before)


def test_a_block_can_be_moved_while_steps_write_its_later_slots(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path)
    expected_keys, expected_values = tiers.pool.keys[:, 6, :, :, :5], tiers.pool.values[:, 6, :, :5]
    expected = expected_keys.clone(), expected_values.clone()

    for _ in range(50):
        tiers.submit(DEVICE, HOST, {6: 0})
        tiers.submit(DEVICE, DISK, {6: 0})
        for number in range(20):
            tiers.pool.keys[:, 6, :, :, 5:] = number
            tiers.pool.values[:, 6, :, 5:] = number
        while tiers.mover.num_pending:
            assert all(arrival.num_done == 1 for arrival in tiers.next_arrivals())
    tiers.move(HOST, DEVICE, {0: 7})
    assert tiers.move(DISK, DEVICE, {0: 8}).num_done == 1

    for block in (7, 8):
        assert torch.equal(tiers.pool.keys[:, block, :, :, :5], expected[0])
        assert torch.equal(tiers.pool.values[:, block, :, :5], expected[1])
    tiers.mover.close()


def test_an_arrival_says_what_was_moved(tiers: Tiers) -> None:
    arrival = tiers.move(DEVICE, HOST, {1: 1, 2: 2, 3: 3})

    assert arrival.num_bytes == 3 * tiers.pool.bytes_per_block
    assert arrival.seconds > 0


def test_a_transfer_is_pending_until_its_end_was_told(tiers: Tiers) -> None:
    tiers.pool.may_read.clear()
    tiers.submit(DEVICE, HOST, {1: 1})
    assert (tiers.mover.num_pending, tiers.mover.arrivals()) == (1, [])

    tiers.pool.may_read.set()
    tiers.mover.wait(PATIENCE)

    assert tiers.mover.num_pending == 1
    assert len(tiers.mover.arrivals()) == 1
    assert (tiers.mover.num_pending, tiers.mover.arrivals()) == (0, [])


def test_nobody_waits_for_what_has_ended_or_was_never_submitted(tiers: Tiers) -> None:
    tiers.mover.wait(1e9)
    tiers.submit(DEVICE, HOST, {1: 1})
    tiers.mover.wait(PATIENCE)

    tiers.mover.wait(1e9)

    assert len(tiers.mover.arrivals()) == 1


def test_waiting_ends_although_nothing_has(tiers: Tiers) -> None:
    tiers.pool.may_read.clear()
    tiers.submit(DEVICE, HOST, {1: 1})

    tiers.mover.wait(0.001)

    assert tiers.mover.arrivals() == []
    tiers.pool.may_read.set()


def test_promotions_overtake_demotions_that_have_not_begun(tiers: Tiers) -> None:
    tiers.move(DEVICE, HOST, {1: 1})
    tiers.pool.is_reading.clear()
    tiers.pool.may_read.clear()
    running = tiers.submit(DEVICE, HOST, {2: 2})
    assert tiers.pool.is_reading.wait(PATIENCE)
    queued = [tiers.submit(DEVICE, DISK, {3: 3}), tiers.submit(DEVICE, HOST, {4: 4})]
    promotion = tiers.submit(HOST, DEVICE, {1: 5})

    tiers.pool.may_read.set()
    told: list[Transfer] = []
    while tiers.mover.num_pending:
        told += [arrival.transfer for arrival in tiers.next_arrivals()]

    assert told == [running, promotion, *queued]


def test_promotions_are_carried_out_between_the_pieces_of_a_demotion(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, share=NO_END)
    expected = tiers.pool.content(range(5))
    started = time.perf_counter()
    demotion = tiers.submit(DEVICE, DISK, {block: block for block in range(5)})
    assert tiers.pool.is_reading.wait(PATIENCE)
    tiers.host.blocks[9] = 77

    promotion = tiers.move(HOST, DEVICE, {9: 20})

    assert promotion.num_done == 1
    assert (tiers.pool.content([20]) == 77).all()
    rests_from = time.perf_counter()
    tiers.mover.wait(0.05)
    rests_to = time.perf_counter()
    tiers.mover.close()
    (ended,) = tiers.mover.arrivals()
    assert (ended.transfer, ended.num_done) == (demotion, 5)
    assert ended.seconds <= time.perf_counter() - started - (rests_to - rests_from)
    again = Tiers(tmp_path)
    assert again.move(DISK, DEVICE, {block: block for block in range(5)}).num_done == 5
    assert torch.equal(again.pool.content(range(5)), expected)
    again.mover.close()


def test_demotions_rest_between_transfers_too(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, share=NO_END)
    tiers.move(DEVICE, HOST, {1: 1})
    tiers.pool.is_reading.clear()

    tiers.submit(DEVICE, HOST, {2: 2})
    promotions = [tiers.move(HOST, DEVICE, {1: block}) for block in range(3, 13)]

    assert all(arrival.num_done == 1 for arrival in promotions)
    assert not tiers.pool.is_reading.is_set()
    tiers.mover.close()


def test_closing_finishes_the_transfer_that_runs_and_drops_what_waits(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, share=NO_END)
    running = tiers.submit(DEVICE, DISK, {block: block for block in range(5)})
    tiers.submit(DEVICE, DISK, {6: 6})
    assert tiers.pool.is_reading.wait(PATIENCE)

    records = tiers.reopened_records()

    assert [(arrival.transfer, arrival.num_done) for arrival in tiers.mover.arrivals()] == [(running, 5)]
    assert set(records) == set(range(5))


def test_what_an_arrival_tells_of_is_on_disk_after_reopening(tiers: Tiers) -> None:
    tiers.move(DEVICE, DISK, {3: 11, 9: 4, 10: 5}, "xyz")

    assert tiers.reopened_records() == {11: record("x"), 4: record("y"), 5: record("z")}


def test_a_damaged_block_ends_the_transfer_and_is_forgotten(tiers: Tiers) -> None:
    tiers.move(DEVICE, DISK, {block: block for block in range(6)})
    untouched = tiers.pool.content([13, 14, 15])
    with open(tiers.folder / "blocks", "r+b") as file:
        file.seek(3 * tiers.pool.bytes_per_block + 100)
        file.write(b"\xff\x00\xff\x00")

    arrival = tiers.move(DISK, DEVICE, {block: 10 + block for block in range(6)})

    assert (arrival.num_done, arrival.is_damaged) == (3, True)
    assert arrival.message == "what lies in slot 3 is damaged or another's"
    assert torch.equal(tiers.pool.content([10, 11, 12]), tiers.pool.content([0, 1, 2]))
    assert torch.equal(tiers.pool.content([13, 14, 15]), untouched)
    assert tiers.disk.num_damaged == 1
    assert tiers.mover.is_disk_usable
    assert set(tiers.reopened_records()) == {0, 1, 2, 4, 5}


def test_another_block_than_the_expected_one_is_not_served(tiers: Tiers) -> None:
    tiers.move(DEVICE, DISK, {1: 1, 2: 2}, "ab")

    arrival = tiers.move(DISK, DEVICE, {1: 11, 2: 12}, "ax")

    assert (arrival.num_done, arrival.is_damaged) == (1, True)


def test_after_a_damaged_block_the_next_transfer_is_sound(tiers: Tiers) -> None:
    """The piece that was read ahead for the one that ended is not taken for the next one's."""
    expected = tiers.pool.content([5, 6])
    tiers.move(DEVICE, DISK, {block: block for block in range(8)})

    tiers.move(DISK, DEVICE, {block: 10 + block for block in range(8)}, "x" * 8)
    arrival = tiers.move(DISK, DEVICE, {5: 20, 6: 21}, "fg")

    assert arrival.num_done == 2
    assert torch.equal(tiers.pool.content([20, 21]), expected)


def test_no_transfer_begins_while_one_that_ended_is_still_reading_ahead(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers.move(DEVICE, DISK, {block: block for block in range(6)})
    may_read, read = threading.Event(), tiers.disk.read

    def read_when_allowed(blocks: list[BlockId], payloads: npt.NDArray[np.uint8]) -> int:
        assert blocks != [4, 5] or may_read.wait(PATIENCE)
        return read(blocks, payloads)

    monkeypatch.setattr(tiers.disk, "read", read_when_allowed)
    damaged = tiers.submit(DISK, DEVICE, {block: 10 + block for block in range(6)}, "abxdef")
    next_one = tiers.submit(DEVICE, DISK, {20: 20}, "z")

    tiers.mover.wait(0.05)
    assert tiers.mover.arrivals() == []
    may_read.set()
    told: list[Transfer] = []
    while tiers.mover.num_pending:
        told += [arrival.transfer for arrival in tiers.next_arrivals()]

    assert told == [damaged, next_one]


def test_what_was_erased_is_gone_after_reopening(tiers: Tiers) -> None:
    tiers.move(DEVICE, DISK, {1: 1, 2: 2, 3: 3})

    tiers.mover.erase([BlockId(1)])
    tiers.mover.erase([BlockId(3)])
    tiers.move(DEVICE, HOST, {1: 1})

    assert set(tiers.reopened_records()) == {2}


def test_what_is_erased_can_be_written_at_once(tiers: Tiers) -> None:
    tiers.submit(DEVICE, DISK, {1: 1, 2: 2}, "ab")
    while tiers.mover.num_pending:
        tiers.next_arrivals()
    tiers.pool.may_read.clear()
    tiers.mover.erase([BlockId(1), BlockId(2)])
    tiers.submit(DEVICE, DISK, {3: 2}, "c")
    tiers.pool.may_read.set()
    while tiers.mover.num_pending:
        tiers.next_arrivals()

    assert tiers.mover.num_erasing == 0
    assert tiers.reopened_records() == {2: record("c")}


class FullDisk:
    """A disk without room for the blocks from `first` on."""

    def __init__(self, patch: pytest.MonkeyPatch, first: int, bytes_per_block: int) -> None:
        self._first_byte = first * bytes_per_block
        self._write = os.pwrite
        patch.setattr(os, "pwrite", self)

    def __call__(self, file: int, data: memoryview, offset: int) -> int:
        if offset + len(data) > self._first_byte:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, data, offset)


def test_a_full_disk_ends_the_disk_tier_and_nothing_else(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tiers.pool.content(range(3))
    FullDisk(monkeypatch, 3, tiers.pool.bytes_per_block)

    full = tiers.move(DEVICE, DISK, {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 5: 6})
    later = tiers.move(DEVICE, DISK, {0: 0}, "z")
    host = tiers.move(DEVICE, HOST, {6: 6})
    back = tiers.move(DISK, DEVICE, {0: 10, 1: 11, 2: 12})

    assert (full.num_done, full.is_damaged) == (3, False)
    assert full.message is not None
    assert "No space left" in full.message
    assert (later.num_done, later.message) == (0, "the disk takes no more blocks")
    assert (host.num_done, back.num_done) == (1, 3)
    assert torch.equal(tiers.pool.content([10, 11, 12]), expected)
    assert not tiers.mover.is_disk_usable
    warning = capsys.readouterr().err
    assert warning.startswith("stemma: the disk takes no more blocks: ")
    assert warning.count("\n") == 1


def test_a_disk_that_cannot_make_blocks_durable_has_taken_none(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_store, "_sync", fail)

    arrival = tiers.move(DEVICE, DISK, {0: 0, 1: 1})

    assert arrival.num_done == 0
    assert not tiers.mover.is_disk_usable
    assert "Input/output error" in capsys.readouterr().err


def test_a_disk_on_which_nothing_can_be_erased_takes_no_more_blocks(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiers.move(DEVICE, DISK, {1: 1, 2: 2})
    FullDisk(monkeypatch, 0, 1)

    tiers.mover.erase([BlockId(1)])
    arrival = tiers.move(DEVICE, DISK, {1: 1})
    tiers.mover.erase([BlockId(2)])
    tiers.move(DEVICE, HOST, {1: 1})

    assert arrival.num_done == 0
    assert not tiers.mover.is_disk_usable
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("target", [HOST, DISK])
def test_whatever_fails_is_told_and_the_next_transfer_runs(tiers: Tiers, target: Tier) -> None:
    tiers.pool.errors = [None, RuntimeError("the device is gone")]

    failed = tiers.move(DEVICE, target, {block: block for block in range(5)})
    arrival = tiers.move(DEVICE, target, {6: 6})

    assert (failed.num_done, failed.message) == (2, "RuntimeError: the device is gone")
    assert (arrival.num_done, arrival.message) == (1, None)


def test_a_mover_without_colder_tiers_refuses_their_transfers(tmp_path: Path) -> None:
    mover = BlockMover(GatedPool(), None, None)

    for source, target in ((DEVICE, HOST), (DEVICE, DISK), (DISK, HOST)):
        copy = BlockCopy(source, BlockId(0), target, BlockId(0), 16)
        with pytest.raises(AssertionError):
            mover.submit(Transfer(source, target, (copy,), (record("a"),)))

    assert not mover.is_disk_usable
    mover.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(random_model("llama"), tmp_path_factory.mktemp("model"))


def configured(checkpoint: Path, **fields: object) -> EngineConfig:
    return EngineConfig(**({"model": str(checkpoint), "kv_bytes": 100_000} | fields))


def test_an_engine_without_colder_tiers_has_none(checkpoint: Path) -> None:
    config = configured(checkpoint)
    runner = load_runner(config)

    assert load_tiers(config, runner) is None
    assert runner.fingerprint == b""


def test_the_tiers_fit_the_bytes_that_were_given(checkpoint: Path, tmp_path: Path) -> None:
    config = configured(
        checkpoint, host_bytes=50_000, disk_folder=str(tmp_path / "kv"), disk_bytes=70_000, dtype="bfloat16"
    )
    runner = load_runner(config)

    tiers = load_tiers(config, runner)

    assert tiers is not None
    size = tiers.bytes_per_block
    assert size == runner.info.kv_bytes // runner.info.num_blocks
    assert tiers.num_host_blocks * size <= 50_000 < (tiers.num_host_blocks + 1) * size
    assert tiers.num_disk_blocks * size <= 70_000 < (tiers.num_disk_blocks + 2) * size
    assert len(tiers.fingerprint) == 16
    assert tiers.records == {}
    assert sorted(path.name for path in (tmp_path / "kv").iterdir()) == ["blocks", "lock", "records"]
    tiers.mover.close()


@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"host_bytes": 50_000}, {(DEVICE, HOST), (HOST, DEVICE)}),
        ({"disk_bytes": 50_000}, {(DEVICE, DISK), (DISK, DEVICE)}),
        (
            {"host_bytes": 50_000, "disk_bytes": 50_000},
            {(DEVICE, HOST), (HOST, DEVICE), (DEVICE, DISK), (HOST, DISK), (DISK, DEVICE)},
        ),
    ],
)
def test_each_way_between_the_tiers_has_a_measured_rate(
    checkpoint: Path, tmp_path: Path, fields: dict[str, int], pairs: set[tuple[Tier, Tier]]
) -> None:
    folder = {"disk_folder": str(tmp_path)} if "disk_bytes" in fields else {}
    config = configured(checkpoint, **fields, **folder)

    tiers = load_tiers(config, load_runner(config))

    assert tiers is not None
    assert set(tiers.rates) == pairs
    assert all(rate > 0 for rate in tiers.rates.values())
    tiers.mover.close()


@pytest.mark.parametrize("room", [0, 1])
def test_a_disk_that_is_full_at_the_start_is_taken_for_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    pool = GatedPool()
    FullDisk(monkeypatch, room, pool.bytes_per_block)

    rates = measure_rates(pool, None, tmp_path)

    assert rates == {(DEVICE, DISK): UNMEASURED, (DISK, DEVICE): UNMEASURED}
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_held_is_told_at_the_next_start_and_only_to_the_same_model(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(checkpoint, disk_folder=str(tmp_path), disk_bytes=70_000, dtype="bfloat16")
    told = []

    for dtype in ("bfloat16", "bfloat16", "float32", "bfloat16"):
        config = configured(checkpoint, disk_folder=str(tmp_path), disk_bytes=70_000, dtype=dtype)
        tiers = load_tiers(config, load_runner(config))
        assert tiers is not None
        told.append(dict(tiers.records))
        copy = BlockCopy(DEVICE, BlockId(0), DISK, BlockId(1), 16)
        tiers.mover.submit(Transfer(DEVICE, DISK, (copy,), (record("a"),)))
        tiers.mover.wait(PATIENCE)
        tiers.mover.close()

    assert told == [{}, {1: record("a")}, {}, {}]
    assert "0 were damaged and 1 of another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"host_bytes": 100}, "host_bytes is 100, but one block takes"),
        ({"host_bytes": 1 << 60}, "lower it"),
        ({"disk_bytes": 100, "disk_folder": "kv"}, "disk_bytes is 100, but one block takes"),
        ({"disk_folder": "file"}, "file cannot be used: .*exists"),
        ({"disk_folder": "file/kv"}, "kv cannot be used: .*Not a directory"),
        ({"disk_folder": "busy"}, "busy is in use by another engine"),
    ],
)
def test_tiers_that_cannot_be_are_refused_with_the_reason(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    config = configured(checkpoint, **fields)
    runner = load_runner(config)

    with ExitStack() as others:
        busy = DiskStore(Path("busy"), bytes(16), num_blocks=1, bytes_per_block=8, block_size=16)
        others.callback(busy.close)
        with pytest.raises(ValueError, match=reason):
            load_tiers(config, runner)
