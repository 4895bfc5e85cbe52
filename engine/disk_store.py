"""The disk tier's files: slots of blocks, and for each a record that says what lies there.

Owns the folder. `lock` is held for as long as the store is open; slot i of `blocks` starts at byte
i * bytes_per_block; slot i of `records` says whose it is, or is zeros. A record is written after its block is
durable and carries the checksums of both, so whatever ends the process or the machine, what is listed
afterwards is whole or is found out before it is used. Both files are sparse until they are used.
"""

import fcntl
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from engine.fingerprint import FINGERPRINT_BYTES
from prefix_cache.hashing import NAME_BYTES
from prefix_cache.plan import BlockId, BlockRecord
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["DiskBusy", "DiskStore", "consecutive", "record_bytes"]

_MAGIC, _VERSION = b"STEMMAKV", 1
# Magic; checksum of what follows; version, bytes of a record, bytes of a block.
_HEAD = struct.Struct("<8sIIIQ")
_HEAD_BYTES = 64
_NAMESPACE_BYTES = 32
# Checksum of what follows; fingerprint; the namespace's length and bytes; parent, name, checksum of the
# block's bytes; number of tokens, which follow and are filled up with zeros to a block's.
_RECORD = struct.Struct(f"<I{FINGERPRINT_BYTES}sB{_NAMESPACE_BYTES}s{NAME_BYTES}s{NAME_BYTES}sII")
_CHECKSUM_BYTES = 4
_RECORDS_AT_ONCE = 4096

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has fsync alone


class DiskBusy(ValueError):
    """Another process has the folder open."""


@dataclass(frozen=True, slots=True)
class _Stored:
    record: BlockRecord
    checksum: int  # of the block's bytes


def record_bytes(block_size: int) -> int:
    """What one block costs on disk beside its own bytes."""
    return _RECORD.size + block_size * TOKEN_BYTES


def consecutive(blocks: Sequence[BlockId]) -> Iterator[slice]:
    """Cut blocks into runs of neighbours, in the order given."""
    start = 0
    for end in range(1, len(blocks) + 1):
        if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
            yield slice(start, end)
            start = end


class DiskStore:
    """`num_blocks` slots in a folder that nobody else has open.

    Opening makes what is missing, drops slots past `num_blocks`, and clears records that are damaged
    (`num_damaged`, which goes on counting) or of another fingerprint or form (`num_foreign`).
    Raises DiskBusy, or OSError when the folder cannot be used.

    One thread at a time may call it, except that `read` may run beside all but `close`.
    """

    def __init__(
        self, folder: Path, fingerprint: bytes, *, num_blocks: int, bytes_per_block: int, block_size: int
    ) -> None:
        self.num_blocks = num_blocks
        self.bytes_per_block = bytes_per_block
        self.num_damaged = 0
        self.num_foreign = 0
        self._fingerprint = fingerprint
        self._record_bytes = record_bytes(block_size)
        self._stored: dict[BlockId, _Stored] = {}
        self._written: dict[BlockId, _Stored] = {}  # not durable yet, and not recorded
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as files:
            _lock(files.enter_context(_open(folder / "lock")), folder)
            self._blocks = files.enter_context(_open(folder / "blocks"))
            self._records = files.enter_context(_open(folder / "records"))
            self._prepare(folder)
            self._load()
            self._files = files.pop_all()

    @property
    def records(self) -> dict[BlockId, BlockRecord]:
        """What lies on the disk, by slot."""
        return {block: stored.record for block, stored in self._stored.items()}

    def write(
        self,
        blocks: Sequence[BlockId],
        records: Sequence[BlockRecord],
        payloads: npt.NDArray[np.uint8],  # [len(blocks), bytes_per_block], contiguous
    ) -> None:
        """Write blocks, which are listed only after `commit`. What the slots held is gone at once.

        Raises OSError when the disk is full or fails; the leading blocks that were written can still be
        committed.
        """
        self._clear(blocks)
        for run in consecutive(blocks):
            _write(self._blocks, payloads[run].data, blocks[run.start] * self.bytes_per_block)
            for block, record, payload in zip(blocks[run], records[run], payloads[run], strict=True):
                self._written[block] = _Stored(record, crc32(payload.data))

    def commit(self) -> int:
        """Make durable what was written since the last call, and list it. Returns the number of blocks.

        Raises OSError when the disk fails; then none of them may be counted on.
        """
        written, self._written = self._written, {}
        if not written:
            return 0
        _sync(self._blocks.fileno())
        blocks = list(written)
        try:
            for run in consecutive(blocks):
                encoded = b"".join(self._encode(written[block]) for block in blocks[run])
                _write(self._records, encoded, self._place(blocks[run.start]))
            _sync(self._records.fileno())
        finally:
            # After a failure too: some may stand in the file, and `erase` must know of them.
            self._stored.update(written)
        return len(written)

    def read(self, blocks: Sequence[BlockId], payloads: npt.NDArray[np.uint8]) -> int:
        """Read blocks into [len(blocks), bytes_per_block]; returns how many leading ones were to be had.

        What was read is not to be used before `check` has passed it.
        """
        num_read = 0
        runs = list(consecutive(blocks))
        if len(runs) > 1 and sys.platform == "linux":
            # The disk works on all of them at once; a single run is read ahead without being asked for.
            for run in runs:
                start, length = blocks[run.start] * self.bytes_per_block, run.stop - run.start
                hint = os.POSIX_FADV_WILLNEED
                os.posix_fadvise(self._blocks.fileno(), start, length * self.bytes_per_block, hint)
        for run in runs:
            part = payloads[run].reshape(-1)
            num_bytes = _read(self._blocks, part, blocks[run.start] * self.bytes_per_block)
            num_read += num_bytes // self.bytes_per_block
            if num_bytes < len(part):
                break
        return num_read

    def check(
        self, blocks: Sequence[BlockId], records: Sequence[BlockRecord], payloads: npt.NDArray[np.uint8]
    ) -> int:
        """How many leading blocks of what `read` gave are whole and say exactly this of themselves.

        `payloads` holds as many blocks as were read. The first block that fails is counted as damaged; it
        should be erased.
        """
        for index, (block, record) in enumerate(zip(blocks, records, strict=True)):
            stored = self._stored.get(block)
            if (
                index == len(payloads)
                or stored is None
                or stored.record != record
                or stored.checksum != crc32(payloads[index].data)
            ):
                self.num_damaged += 1
                return index
        return len(blocks)

    def erase(self, blocks: Sequence[BlockId]) -> None:
        """Forget what slots hold, durably. Raises OSError when the disk fails."""
        if self._clear(blocks):
            _sync(self._records.fileno())

    def drop_pages(self) -> None:
        """Let the system drop, where it can be asked to, what it holds of the files in memory."""
        if sys.platform == "linux":
            os.posix_fadvise(self._blocks.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the files and let go of the folder. What was not committed is not kept."""
        self._files.close()

    def _clear(self, blocks: Sequence[BlockId]) -> bool:
        """Clear records; returns whether there was any."""
        listed = sorted(block for block in set(blocks) if self._stored.pop(block, None) is not None)
        for run in consecutive(listed):
            cleared = listed[run]
            _write(self._records, bytes(len(cleared) * self._record_bytes), self._place(cleared[0]))
        return bool(listed)

    def _prepare(self, folder: Path) -> None:
        """Bring both files to this store's form and size."""
        rest = struct.pack("<IIQ", _VERSION, self._record_bytes, self.bytes_per_block)
        head = _HEAD.pack(_MAGIC, crc32(rest), _VERSION, self._record_bytes, self.bytes_per_block)
        found = os.pread(self._records.fileno(), _HEAD.size, 0)
        if found != head:
            num_foreign = _count_foreign(self._records, found)
            self.num_foreign += num_foreign
            if not num_foreign:
                num_bytes = max(0, os.fstat(self._records.fileno()).st_size - _HEAD_BYTES)
                self.num_damaged += -(-num_bytes // self._record_bytes)  # not even their form can be told
            # Nothing of the old form may stand behind the new head, so that it is never read as the new one.
            self._records.truncate(0)
            self._blocks.truncate(0)
            _sync(self._records.fileno())
            _write(self._records, head, 0)
            _sync(self._records.fileno())
            _sync_folder(folder)
        for file, size in (
            (self._records, self._place(BlockId(self.num_blocks))),
            (self._blocks, self.num_blocks * self.bytes_per_block),
        ):
            if os.fstat(file.fileno()).st_size > size:
                file.truncate(size)

    def _load(self) -> None:
        """Read every record, and clear those that cannot be used."""
        num_whole = os.fstat(self._blocks.fileno()).st_size // self.bytes_per_block
        useless = []
        for first in range(0, self.num_blocks, _RECORDS_AT_ONCE):
            num_records = min(_RECORDS_AT_ONCE, self.num_blocks - first)
            data = os.pread(
                self._records.fileno(), num_records * self._record_bytes, self._place(BlockId(first))
            )
            for block, raw in enumerate(_cut(data, self._record_bytes), first):
                if raw == bytes(len(raw)):
                    continue
                stored = self._decode(raw, is_whole=block < num_whole)
                if stored is not None:
                    self._stored[BlockId(block)] = stored
                else:
                    useless.append(BlockId(block))
        for block in useless:
            _write(self._records, bytes(self._record_bytes), self._place(block))

    def _place(self, block: BlockId) -> int:
        return _HEAD_BYTES + block * self._record_bytes

    def _encode(self, stored: _Stored) -> bytes:
        record = stored.record
        assert len(record.namespace) <= _NAMESPACE_BYTES, "a namespace is a digest or nothing"
        rest = _RECORD.pack(
            0,
            self._fingerprint,
            len(record.namespace),
            record.namespace,
            record.parent,
            record.name,
            stored.checksum,
            len(record.tokens) // TOKEN_BYTES,
        )[_CHECKSUM_BYTES:]
        rest += record.tokens
        rest = rest.ljust(self._record_bytes - _CHECKSUM_BYTES, b"\0")
        assert len(rest) == self._record_bytes - _CHECKSUM_BYTES, "a block holds no more than its tokens"
        return struct.pack("<I", crc32(rest)) + rest

    def _decode(self, raw: bytes, *, is_whole: bool) -> _Stored | None:
        """What a record says, or None, counted, if that is of no use."""
        if len(raw) < self._record_bytes or not is_whole:
            self.num_damaged += 1
            return None
        checksum, fingerprint, length, namespace, parent, name, block_checksum, num_tokens = (
            _RECORD.unpack_from(raw)
        )
        if checksum != crc32(raw[_CHECKSUM_BYTES:]):
            self.num_damaged += 1
            return None
        if fingerprint != self._fingerprint:
            self.num_foreign += 1
            return None
        tokens = raw[_RECORD.size : _RECORD.size + num_tokens * TOKEN_BYTES]
        return _Stored(BlockRecord(namespace[:length], parent, name, tokens), block_checksum)


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def _open(path: Path) -> FileIO:
    return open(path, "r+b", buffering=0, opener=_create)


def _lock(file: FileIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DiskBusy(
            f"{folder} is in use by another engine: stop that one, or give this one another folder"
        ) from None


def _sync_folder(folder: Path) -> None:
    """Make the names of new files durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _cut(data: bytes, length: int) -> Iterator[bytes]:
    return (data[start : start + length] for start in range(0, len(data), length))


def _count_foreign(records: FileIO, found: bytes) -> int:
    """How many records a file of another form holds; 0 if it never was one of ours."""
    if len(found) < _HEAD.size:
        return 0
    magic, checksum, _, length, _ = _HEAD.unpack(found)
    if magic != _MAGIC or checksum != crc32(found[_HEAD.size - struct.calcsize("<IIQ") :]) or not length:
        return 0
    records.seek(_HEAD_BYTES)
    return sum(raw != bytes(len(raw)) for raw in _cut(records.readall(), length))


def _write(file: FileIO, data: "bytes | memoryview", offset: int) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        written = os.pwrite(file.fileno(), rest, offset)
        rest, offset = rest[written:], offset + written


def _read(file: FileIO, into: npt.NDArray[np.uint8], offset: int) -> int:
    """Fill `into`; returns how many bytes were to be had before the file's end or an error."""
    num_read = 0
    while num_read < len(into):
        try:
            count = os.preadv(file.fileno(), [into[num_read:].data], offset + num_read)
        except OSError:
            break
        if count == 0:
            break
        num_read += count
    return num_read
