"""Names of blocks that hold outside this process: on disk, in events, for routing.

A block's name is a hash of its predecessor's name, its namespace and its tokens, so it stands for the whole
prefix. Never on the hot path: matching compares tokens, and so does whoever reads a block by its name.
"""

from collections.abc import Iterator
from hashlib import blake2b

from prefix_cache.node import Namespace
from prefix_cache.tokens import TOKEN_BYTES

__all__ = ["NAME_BYTES", "block_name", "block_names", "root_name"]

NAME_BYTES = 16


def root_name(fingerprint: bytes, namespace: Namespace) -> bytes:
    """Where a namespace's paths begin, for one model and one layout of its blocks."""
    return _hash(b"root", fingerprint, namespace)


def block_name(parent: bytes, tokens: bytes) -> bytes:
    """The name of the block that holds these tokens after the parent's."""
    return _hash(b"block", parent, tokens)


def block_names(root: bytes, tokens: bytes, block_size: int) -> Iterator[bytes]:
    """The names of all blocks of a path, the last and partial one too."""
    name = root
    for start in range(0, len(tokens), block_size * TOKEN_BYTES):
        name = block_name(name, tokens[start : start + block_size * TOKEN_BYTES])
        yield name


def _hash(kind: bytes, first: bytes, second: bytes) -> bytes:
    state = blake2b(digest_size=NAME_BYTES, person=kind)
    state.update(len(first).to_bytes(4, "little"))
    state.update(first)
    state.update(second)
    return state.digest()
