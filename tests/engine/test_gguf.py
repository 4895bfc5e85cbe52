"""The container: what is read, and that no file can make the reader fail in another way than by GGUFError."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gguf import GGMLType, GGUFError, GGUFFile
from tests.engine.gguf_files import gguf_bytes

METADATA: dict[str, Any] = {
    "general.name": "a tiny – model",
    "count": 3,
    "scale": 0.5,
    "flag": True,
    "tokens": ["a", "ü", ""],
    "numbers": [1, 2, 3],
    "nothing": [],
}
TENSORS = {
    "first": (GGMLType.F32, (2, 3), bytes(range(24))),
    "second": (GGMLType.Q8_0, (1, 32), bytes(range(34))),
}
GOOD = gguf_bytes(METADATA, TENSORS)


def _read(path: Path, data: bytes) -> GGUFFile:
    path.write_bytes(data)
    return GGUFFile(path)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_come_back_as_they_were_written(version: int, tmp_path: Path) -> None:
    file = _read(tmp_path / "file", gguf_bytes(METADATA, TENSORS, version))

    assert file.metadata == METADATA


def test_a_tensor_has_its_shape_and_its_bytes(tmp_path: Path) -> None:
    file = _read(tmp_path / "file", GOOD)

    assert [(tensor.shape, tensor.type) for tensor in file.tensors.values()] == [
        ((2, 3), GGMLType.F32),
        ((1, 32), GGMLType.Q8_0),
    ]
    assert file.data("first").tobytes() == bytes(range(24))
    assert file.data("second").tobytes() == bytes(range(34))


def test_the_alignment_that_the_file_names_is_used(tmp_path: Path) -> None:
    data = gguf_bytes({"general.alignment": 8}, {"one": (GGMLType.F32, (1,), b"abcd")})
    head = data.rstrip(b"\0")[:-4].rstrip(b"\0")
    file = _read(tmp_path / "file", data)

    assert file.tensors["one"].offset % 8 == 0
    assert file.tensors["one"].offset - len(head) < 32


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (b"GGUF\x01" + bytes(40), "version 1"),
        (GOOD[:-1], "truncated"),
        (GOOD[:60], "truncated"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16 + bytes(8), "type|truncated|twice"),
        (gguf_bytes({"general.alignment": 5}, {}), "alignment"),
        (gguf_bytes({}, {"odd": (GGMLType.Q8_0, (1, 33), bytes(34))}), "multiple of 32"),
        (gguf_bytes({}, {"single": (GGMLType.Q8_0, (), bytes(34))}), "rows of 1"),
        (gguf_bytes({}, {"deep": (GGMLType.F32, (1,) * 5, bytes(4))}), "5 dimensions"),
        (gguf_bytes({}, {"none": (GGMLType.F32, (0, 4), b"")}), "empty"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=reason):
        _read(tmp_path / "file", data)


def test_a_claimed_length_is_not_believed(tmp_path: Path) -> None:
    start = GOOD.index(b"tokens") + len("tokens") + 8
    data = GOOD[:start] + b"\xff" * 7 + b"\x0f" + GOOD[start + 8 :]

    with pytest.raises(GGUFError, match="claims"):
        _read(tmp_path / "file", data)


@pytest.mark.parametrize("end", range(0, len(GOOD) - 1, 3))
def test_no_truncation_passes(end: int, tmp_path: Path) -> None:
    with pytest.raises(GGUFError):
        _read(tmp_path / "file", GOOD[:end])


@settings(max_examples=300, deadline=None)
@given(place=st.integers(4, len(GOOD) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(place: int, value: int, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "changed"
    path.write_bytes(GOOD[:place] + bytes([value]) + GOOD[place + 1 :])
    try:
        file = GGUFFile(path)
    except GGUFError:
        return
    for name in file.tensors:
        assert len(file.data(name)) == file.tensors[name].num_bytes


def test_the_default_models_vocabulary_is_read(default_model_path: Path) -> None:
    file = GGUFFile(default_model_path)

    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.metadata["tokenizer.ggml.tokens"][2] == "<|im_end|>"
    assert file.tensors["token_embd.weight"].shape == (49152, 576)
