"""A model's tokens as bytes: what the engine must know of text to hold an answer to a grammar."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

__all__ = ["Vocabulary", "read_vocabulary", "write_vocabulary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens by their ids. Control tokens have a name and no bytes."""

    tokens: list[bytes]
    control_names: dict[int, str]
    end_token_ids: list[int]  # drawing one ends an answer


def write_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    """Leave a vocabulary where an engine's process finds it."""
    path.write_bytes(msgspec.msgpack.encode(vocabulary))


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises OSError, and msgspec.MsgspecError for what is no vocabulary."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Vocabulary)
