"""The GGUF container: what a file says about itself, and where each of its tensors lies.

Owns the parsing of the header (versions 2 and 3, little endian) and the mapping of one tensor's bytes.
Knows neither what the metadata mean nor how quantized numbers are read. Reading ends in a `GGUFFile` or a
`GGUFError`, whatever the file holds: no count or offset is believed before it has been compared with the
file's size.
"""

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["GGMLType", "GGUFError", "GGUFFile", "GGUFTensor"]

MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
DEFAULT_ALIGNMENT = 32


class GGUFError(ValueError):
    """The file is not a GGUF file, or is truncated or corrupt."""


class GGMLType(IntEnum):
    """How a tensor's numbers are stored. The values are the format's."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30


class Packing(NamedTuple):
    """A type stores `num_elements` numbers of a row together in `num_bytes`."""

    num_elements: int
    num_bytes: int


PACKINGS = {
    GGMLType.F32: Packing(1, 4),
    GGMLType.F16: Packing(1, 2),
    GGMLType.Q4_0: Packing(32, 18),
    GGMLType.Q4_1: Packing(32, 20),
    GGMLType.Q5_0: Packing(32, 22),
    GGMLType.Q5_1: Packing(32, 24),
    GGMLType.Q8_0: Packing(32, 34),
    GGMLType.Q8_1: Packing(32, 36),
    GGMLType.Q2_K: Packing(256, 84),
    GGMLType.Q3_K: Packing(256, 110),
    GGMLType.Q4_K: Packing(256, 144),
    GGMLType.Q5_K: Packing(256, 176),
    GGMLType.Q6_K: Packing(256, 210),
    GGMLType.Q8_K: Packing(256, 292),
    GGMLType.IQ2_XXS: Packing(256, 66),
    GGMLType.IQ2_XS: Packing(256, 74),
    GGMLType.IQ3_XXS: Packing(256, 98),
    GGMLType.IQ1_S: Packing(256, 50),
    GGMLType.IQ4_NL: Packing(32, 18),
    GGMLType.IQ3_S: Packing(256, 110),
    GGMLType.IQ2_S: Packing(256, 82),
    GGMLType.IQ4_XS: Packing(256, 136),
    GGMLType.I8: Packing(1, 1),
    GGMLType.I16: Packing(1, 2),
    GGMLType.I32: Packing(1, 4),
    GGMLType.I64: Packing(1, 8),
    GGMLType.F64: Packing(1, 8),
    GGMLType.IQ1_M: Packing(256, 56),
    GGMLType.BF16: Packing(1, 2),
}

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's entry. `shape` is row-major, the reverse of the file's order."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int  # bytes from the start of the file
    num_bytes: int


class GGUFFile:
    """A parsed file. Holds no mapping between calls, so nothing need be closed.

    Metadata values are str, bool, int, float, or lists of these.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        with self.path.open("rb") as file:
            size = self.path.stat().st_size
            if size < 24:
                raise GGUFError(f"{self.path} is not a GGUF file: it has only {size} bytes")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                self._parse(_Reader(mapping, str(self.path)))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as they lie in the file, mapped for as long as the array lives.

        Writes to the array would be private to it: torch wants an array that it could write to.
        """
        tensor = self.tensors[name]
        return np.memmap(self.path, np.uint8, "c", tensor.offset, (tensor.num_bytes,))

    def _parse(self, reader: "_Reader") -> None:
        if reader.take(4) != b"GGUF":
            raise reader.error("it is not a GGUF file: it does not begin with GGUF")
        version = reader.scalar("I")
        if version not in (2, 3):
            raise reader.error(f"it has GGUF version {version}; versions 2 and 3 are read")
        num_tensors, num_values = reader.scalar("Q"), reader.scalar("Q")
        for _ in range(num_values):
            key = reader.string()
            if key in self.metadata:
                raise reader.error(f"its metadata name {key!r} twice")
            self.metadata[key] = reader.value(reader.scalar("I"))
        entries = [reader.tensor_entry() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise reader.error(f"its alignment is {alignment!r}, which is no positive multiple of 8")
        data_start = -(-reader.position // alignment) * alignment
        for entry in entries:
            self._place(reader, entry, data_start)

    def _place(self, reader: "_Reader", entry: GGUFTensor, data_start: int) -> None:
        if entry.name in self.tensors:
            raise reader.error(f"it holds tensor {entry.name!r} twice")
        tensor = GGUFTensor(
            entry.name, entry.shape, entry.type, data_start + entry.offset, num_bytes=entry.num_bytes
        )
        if tensor.offset + tensor.num_bytes > reader.size:
            raise reader.error(
                f"tensor {tensor.name!r} ends at byte {tensor.offset + tensor.num_bytes}, "
                f"but the file has {reader.size}: it is truncated"
            )
        self.tensors[tensor.name] = tensor


class _Reader:
    """A position in the mapped file; every read is checked against its end."""

    def __init__(self, mapping: mmap.mmap, name: str) -> None:
        self.position = 0
        self.size = len(mapping)
        self._mapping = mapping
        self._name = name

    def error(self, what: str) -> GGUFError:
        return GGUFError(f"{self._name} cannot be read: {what}")

    def take(self, num_bytes: int) -> bytes:
        start, end = self.position, self.position + num_bytes
        if end > self.size:
            raise self.error(f"it is truncated or corrupt: {num_bytes} bytes are missing at byte {start}")
        self.position = end
        return self._mapping[start:end]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        data = self.take(self.scalar("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"the text that ends at byte {self.position} is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == ARRAY and depth < MAX_ARRAY_DEPTH:
            return self._array(self.scalar("I"), self.scalar("Q"), depth)
        raise self.error(f"a value before byte {self.position} has the unknown type {kind}")

    def _array(self, kind: int, length: int, depth: int) -> list[Any]:
        if kind in SCALARS:
            code = np.dtype("<" + SCALARS[kind])
            numbers: list[Any] = np.frombuffer(self.take(length * code.itemsize), code).tolist()
            return numbers
        # A string or an array takes eight bytes or more: a length that the file cannot hold ends here.
        if self.position + 8 * length > self.size:
            raise self.error(f"an array at byte {self.position} claims {length} elements: it is corrupt")
        return [self.value(kind, depth + 1) for _ in range(length)]

    def tensor_entry(self) -> GGUFTensor:
        """The entry with `offset` still relative to the data section."""
        name = self.string()
        num_dimensions = self.scalar("I")
        if num_dimensions > MAX_DIMENSIONS:
            raise self.error(f"tensor {name!r} has {num_dimensions} dimensions; {MAX_DIMENSIONS} is the most")
        shape = tuple(reversed([self.scalar("Q") for _ in range(num_dimensions)]))
        if 0 in shape:
            raise self.error(f"tensor {name!r} is empty: its shape is {shape}")
        kind, offset = self.scalar("I"), self.scalar("Q")
        if kind not in GGMLType.__members__.values():
            raise self.error(f"tensor {name!r} has the unknown type {kind}")
        num_elements, num_bytes = PACKINGS[GGMLType(kind)]
        row = shape[-1] if shape else 1
        if row % num_elements:
            raise self.error(f"tensor {name!r} has rows of {row}, no multiple of {num_elements}")
        return GGUFTensor(name, shape, GGMLType(kind), offset, prod(shape) // num_elements * num_bytes)
