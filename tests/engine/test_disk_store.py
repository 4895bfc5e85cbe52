"""The disk tier's files: what is listed is whole, whatever happened; what is not whole is never served."""

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine import disk_store
from engine.disk_store import DiskBusy, DiskStore, consecutive, record_bytes
from prefix_cache.plan import BlockId, BlockRecord
from prefix_cache.tokens import pack

MODEL = b"m" * 16
BLOCK_SIZE, BLOCK_BYTES = 16, 600
Payloads = npt.NDArray[np.uint8]


class Cut(Exception):
    """The process ended here."""


def open_store(
    folder: Path, num_blocks: int = 12, model: bytes = MODEL, bytes_per_block: int = BLOCK_BYTES
) -> DiskStore:
    return DiskStore(
        folder, model, num_blocks=num_blocks, bytes_per_block=bytes_per_block, block_size=BLOCK_SIZE
    )


def ids(*blocks: int) -> list[BlockId]:
    return [BlockId(block) for block in blocks]


def record_of(seed: int, num_tokens: int = BLOCK_SIZE) -> BlockRecord:
    tokens = pack([0x11111111 + seed] * num_tokens)
    return BlockRecord(b"n" * (seed % 33), bytes([1 + seed]) * 16, bytes([101 + seed]) * 16, tokens)


def payload_of(record: BlockRecord, num_bytes: int = BLOCK_BYTES) -> Payloads:
    """What stands in a block follows from its tokens, so a test can tell whether it is the right one."""
    seed = int.from_bytes(record.tokens[:4], "little")
    return np.frombuffer(random.Random(seed).randbytes(num_bytes), np.uint8)


def store(target: DiskStore, blocks: Sequence[BlockId], records: Sequence[BlockRecord]) -> None:
    target.write(blocks, records, np.stack([payload_of(record) for record in records]))
    assert target.commit() == len(blocks)


def store_for_ever(target: DiskStore, blocks: Sequence[BlockId], chance: random.Random) -> None:
    while True:
        store(target, blocks, [record_of(chance.randrange(90)) for _ in blocks])


def load(source: DiskStore, blocks: Sequence[BlockId], records: Sequence[BlockRecord]) -> list[bytes]:
    """The leading blocks that are served."""
    payloads = np.empty((len(blocks), BLOCK_BYTES), np.uint8)
    num_read = source.read(blocks, payloads)
    num_sound = source.check(blocks, records, payloads[:num_read])
    return [payload.tobytes() for payload in payloads[:num_sound]]


def is_all_as_listed(source: DiskStore) -> bool:
    """Whether each record that is listed gives the very block that was written with it."""
    listed = source.records
    expected = [payload_of(record).tobytes() for record in listed.values()]
    return load(source, list(listed), list(listed.values())) == expected


def flip(path: Path, place: int, mask: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ mask]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "kv"


@pytest.fixture
def opened(folder: Path) -> Iterator[DiskStore]:
    opened = open_store(folder)
    yield opened
    opened.close()


def test_neighbours_are_cut_into_runs() -> None:
    runs = list(consecutive(ids(3, 4, 5, 9, 8, 8, 9)))

    assert runs == [slice(0, 3), slice(3, 4), slice(4, 5), slice(5, 7)]
    assert list(consecutive([])) == []


def test_what_was_committed_is_there_after_reopening(folder: Path) -> None:
    blocks, records = ids(4, 5, 11, 0), [record_of(0), record_of(1), record_of(2), record_of(32, 5)]
    opened = open_store(folder)
    store(opened, blocks, records)
    opened.close()

    again = open_store(folder)

    assert again.records == dict(zip(blocks, records, strict=True))
    assert load(again, blocks, records) == [payload_of(record).tobytes() for record in records]
    assert (again.num_damaged, again.num_foreign) == (0, 0)
    again.close()


def test_what_was_not_committed_is_not_listed(folder: Path) -> None:
    opened = open_store(folder)
    opened.write(ids(1), [record_of(1)], payload_of(record_of(1))[None])
    assert opened.records == {}
    opened.close()

    again = open_store(folder)

    assert again.records == {}
    again.close()


def test_nothing_to_commit_is_no_work(opened: DiskStore) -> None:
    assert opened.commit() == 0


def test_a_slot_that_is_written_again_holds_the_new_block_alone(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(1, 2), [record_of(1), record_of(2)])
    store(opened, ids(2), [record_of(3)])
    opened.close()

    again = open_store(folder)

    assert again.records == {1: record_of(1), 2: record_of(3)}
    assert is_all_as_listed(again)
    again.close()


def test_a_slot_that_is_being_written_again_is_not_served_as_what_it_was(opened: DiskStore) -> None:
    store(opened, ids(1), [record_of(1)])

    opened.write(ids(1), [record_of(2)], payload_of(record_of(2))[None])

    assert opened.records == {}
    assert load(opened, ids(1), [record_of(1)]) == []


def test_what_was_erased_is_gone_after_reopening(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(1, 2, 3, 7), [record_of(seed) for seed in range(4)])
    opened.erase(ids(3, 7, 1, 9, 1))
    assert opened.records == {2: record_of(1)}
    opened.close()

    again = open_store(folder)

    assert again.records == {2: record_of(1)}
    assert again.num_damaged == 0
    again.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wherever_writing_is_cut_short_only_whole_blocks_are_listed(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write in turn ends in its middle and is the last: what the process did before stays, as after a
    kill."""
    chance, real = random.Random(seed), os.pwrite

    for num_writes in range(14):
        left = num_writes

        def cut(file: int, data: memoryview, offset: int) -> int:
            nonlocal left
            if left == 0:
                real(file, data[: chance.randrange(len(data))], offset)
                raise Cut
            left -= 1
            return real(file, data, offset)

        opened = open_store(folder)
        before = opened.records
        rewritten = ids(*chance.sample(range(12), 4))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", cut)
            with pytest.raises(Cut):
                store_for_ever(opened, rewritten, chance)
        opened.close()

        again = open_store(folder)
        assert is_all_as_listed(again)
        assert {block: record for block, record in before.items() if block not in rewritten} == {
            block: record for block, record in again.records.items() if block not in rewritten
        }
        store(again, ids(*range(12)), [record_of(seed) for seed in range(12)])
        again.close()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from tests.engine.test_disk_store import ids, open_store, payload_of, record_of

store = open_store(Path(sys.argv[1]))
for number in range(100000):
    blocks = ids(*((3 * number + place) % 12 for place in range(3)))
    records = [record_of((3 * number + place) % 90) for place in range(3)]
    store.write(blocks, records, np.stack([payload_of(record) for record in records]))
    store.commit()
    print(number, flush=True)
"""


@pytest.mark.parametrize("num_rounds", [1, 7, 40])
def test_after_a_kill_what_was_committed_is_whole_and_the_rest_is_not_listed(
    num_rounds: int, folder: Path
) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer:
        for _ in range(num_rounds):
            assert writer.stdout.readline()
        writer.kill()
        last = max(map(int, writer.stdout.read().split()), default=num_rounds - 1)

    opened = open_store(folder)

    # Rounds of three slots each: the one after the last that was told was under way, in other slots.
    for number in (3 * last, 3 * last + 1, 3 * last + 2):
        assert opened.records[BlockId(number % 12)] == record_of(number % 90)
    assert is_all_as_listed(opened)
    opened.close()


@pytest.mark.parametrize("damage", ["flipped", "torn"])
def test_a_record_damaged_at_any_byte_is_skipped_counted_and_cleared(folder: Path, damage: str) -> None:
    opened = open_store(folder)
    store(opened, ids(0, 1, 2), [record_of(32), record_of(32), record_of(32)])
    opened.close()
    whole = (folder / "records").read_bytes()
    length = record_bytes(BLOCK_SIZE)
    start = len(whole) - 2 * length
    assert start > 0

    for place in range(start, start + length):
        if damage == "flipped":
            damaged = whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :]
        else:
            damaged = whole[:place] + bytes(start + length - place) + whole[start + length :]
        (folder / "records").write_bytes(damaged)
        again = open_store(folder)
        assert set(again.records) == {0, 2}
        # Torn before its first byte, nothing of it is there.
        assert again.num_damaged == (0 if damage == "torn" and place == start else 1)
        again.close()
        assert (folder / "records").read_bytes()[start : start + length] == bytes(length)


@pytest.mark.parametrize("place", [0, 299, BLOCK_BYTES - 1])
def test_a_block_with_one_wrong_bit_is_not_served(folder: Path, opened: DiskStore, place: int) -> None:
    records = [record_of(seed) for seed in range(4)]
    store(opened, ids(5, 6, 7, 8), records)
    flip(folder / "blocks", 7 * BLOCK_BYTES + place)

    served = load(opened, ids(5, 6, 7, 8), records)

    assert served == [payload_of(record).tobytes() for record in records[:2]]
    assert opened.num_damaged == 1


@pytest.mark.parametrize(
    "expected",
    [
        BlockRecord(b"x", record_of(1).parent, record_of(1).name, record_of(1).tokens),
        BlockRecord(record_of(1).namespace, bytes(16), record_of(1).name, record_of(1).tokens),
        BlockRecord(record_of(1).namespace, record_of(1).parent, bytes(16), record_of(1).tokens),
        BlockRecord(record_of(1).namespace, record_of(1).parent, record_of(1).name, pack([1] * 16)),
    ],
)
def test_a_block_that_says_something_else_of_itself_is_not_served(
    opened: DiskStore, expected: BlockRecord
) -> None:
    store(opened, ids(1), [record_of(1)])

    assert load(opened, ids(1), [expected]) == []
    assert opened.num_damaged == 1


def test_a_block_that_cannot_be_read_is_not_served(folder: Path, opened: DiskStore) -> None:
    store(opened, ids(1, 2), [record_of(1), record_of(2)])
    os.truncate(folder / "blocks", 3 * BLOCK_BYTES - 1)

    assert load(opened, ids(1, 2), [record_of(1), record_of(2)]) == [payload_of(record_of(1)).tobytes()]


def test_a_failing_read_gives_what_was_read_before_it(
    opened: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(opened, ids(1, 3, 5), [record_of(1), record_of(3), record_of(5)])
    real = os.preadv

    def fail(file: int, buffers: list[memoryview], offset: int) -> int:
        if offset == 3 * BLOCK_BYTES:
            raise OSError(errno.EIO, "no")
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail)
    payloads = np.empty((3, BLOCK_BYTES), np.uint8)

    assert opened.read(ids(1, 3, 5), payloads) == 1
    assert payloads[0].tobytes() == payload_of(record_of(1)).tobytes()


def test_reads_and_writes_that_stop_halfway_go_on(opened: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: write(file, data[:97], offset))
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: read(file, [buffers[0][:89]], offset))
    records = [record_of(1), record_of(2)]

    store(opened, ids(1, 2), records)

    assert load(opened, ids(1, 2), records) == [payload_of(record).tobytes() for record in records]


def test_blocks_of_another_model_are_counted_and_cleared(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(1, 2), [record_of(1), record_of(2)])
    opened.close()

    other = open_store(folder, model=b"o" * 16)
    assert (other.records, other.num_foreign, other.num_damaged) == ({}, 2, 0)
    other.close()
    back = open_store(folder)

    assert (back.records, back.num_foreign) == ({}, 0)
    back.close()


def test_blocks_of_another_size_are_counted_and_dropped(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(1, 2), [record_of(1), record_of(2)])
    opened.close()

    other = open_store(folder, bytes_per_block=2 * BLOCK_BYTES)

    assert (other.records, other.num_foreign) == ({}, 2)
    assert (folder / "blocks").stat().st_size == 0
    other.close()


@pytest.mark.parametrize("garbage", [b"", b"x", b"\xff" * 5000, b"STEMMAKV" + bytes(500), bytes(5000)])
def test_a_file_of_records_that_is_none_is_made_anew(folder: Path, garbage: bytes) -> None:
    opened = open_store(folder)
    store(opened, ids(1), [record_of(1)])
    opened.close()
    (folder / "records").write_bytes(garbage)

    again = open_store(folder)

    assert (again.records, again.num_foreign) == ({}, 0)
    store(again, ids(3), [record_of(3)])
    assert is_all_as_listed(again)
    again.close()


@pytest.mark.parametrize("num_bytes", [0, 2 * BLOCK_BYTES - 1])
def test_records_of_blocks_that_are_not_there_are_dropped(folder: Path, num_bytes: int) -> None:
    opened = open_store(folder)
    store(opened, ids(0, 1, 2), [record_of(0), record_of(1), record_of(2)])
    opened.close()
    os.truncate(folder / "blocks", num_bytes)

    again = open_store(folder)

    assert set(again.records) == set(range(num_bytes // BLOCK_BYTES))
    assert again.num_damaged == 3 - num_bytes // BLOCK_BYTES
    again.close()


def test_a_file_of_blocks_full_of_garbage_serves_nothing(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(0, 1), [record_of(0), record_of(1)])
    opened.close()
    (folder / "blocks").write_bytes(b"\xff" * 100_000)

    again = open_store(folder)

    assert load(again, ids(0, 1), [record_of(0), record_of(1)]) == []
    again.close()


def test_a_smaller_store_drops_what_lies_past_its_end(folder: Path) -> None:
    opened = open_store(folder)
    store(opened, ids(2, 3, 11), [record_of(2), record_of(3), record_of(11)])
    opened.close()

    smaller = open_store(folder, num_blocks=3)
    assert smaller.records == {2: record_of(2)}
    assert (folder / "blocks").stat().st_size == 3 * BLOCK_BYTES
    smaller.close()
    larger = open_store(folder, num_blocks=12)

    assert larger.records == {2: record_of(2)}
    assert is_all_as_listed(larger)
    larger.close()


def test_more_slots_than_are_read_at_once_are_all_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "_RECORDS_AT_ONCE", 5)
    opened = open_store(folder)
    store(opened, ids(*range(12)), [record_of(seed) for seed in range(12)])
    opened.close()

    again = open_store(folder)

    assert again.records == {block: record_of(block) for block in range(12)}
    again.close()


def test_a_second_opener_is_told_who_is_in_the_way(folder: Path, opened: DiskStore) -> None:
    with pytest.raises(DiskBusy, match=f"{folder} is in use by another engine: stop that one"):
        open_store(folder)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_free_again_when_the_process_that_held_it_is_killed(folder: Path) -> None:
    open_store(folder).close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DiskBusy):
            open_store(folder)
        holder.kill()

    open_store(folder).close()


def test_only_the_user_may_read_what_lies_there(folder: Path, opened: DiskStore) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "lock": 0o600,
        "blocks": 0o600,
        "records": 0o600,
    }


def test_files_of_others_in_the_folder_are_left_alone(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")

    open_store(folder).close()

    assert (folder / "notes.txt").read_text() == "mine"


def test_space_is_not_taken_before_it_is_used(folder: Path) -> None:
    opened = open_store(folder, num_blocks=1000, bytes_per_block=1 << 20)

    last = np.zeros((1, 1 << 20), np.uint8)
    opened.write(ids(999), [record_of(1)], last)
    opened.commit()

    assert (folder / "blocks").stat().st_blocks * 512 < 4 << 20
    assert (folder / "blocks").stat().st_size == 1000 << 20
    opened.close()


def test_a_full_disk_keeps_the_blocks_before_the_one_that_did_not_fit(
    opened: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record_of(1), record_of(2)]
    real = os.pwrite

    def full(file: int, data: memoryview, offset: int) -> int:
        if len(data) == BLOCK_BYTES and offset >= 4 * BLOCK_BYTES:
            raise OSError(errno.ENOSPC, "full")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        opened.write(ids(1, 4), records, np.stack([payload_of(record) for record in records]))

    assert opened.commit() == 1
    assert opened.records == {1: record_of(1)}
    assert is_all_as_listed(opened)


def test_a_block_whose_bytes_did_not_become_durable_is_not_recorded(
    folder: Path, opened: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.write(ids(1), [record_of(1)], payload_of(record_of(1))[None])
    before = (folder / "records").read_bytes()

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(disk_store, "_sync", fail)
    with pytest.raises(OSError, match="no"):
        opened.commit()

    assert opened.records == {}
    assert (folder / "records").read_bytes() == before


def test_a_record_that_may_stand_on_a_failing_disk_can_be_erased(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_store(folder)
    opened.write(ids(1), [record_of(1)], payload_of(record_of(1))[None])
    synced = []

    def fail_second(file: int) -> None:
        synced.append(file)
        if len(synced) == 2:
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(disk_store, "_sync", fail_second)
    with pytest.raises(OSError, match="no"):
        opened.commit()
    opened.erase(ids(1))
    opened.close()
    again = open_store(folder)

    assert again.records == {}
    again.close()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        open_store(tmp_path / "file" / "kv")
