"""Names of blocks that hold outside this process: on disk, in events, for routing.

A block's name is a hash of its predecessor's name, its namespace and its tokens, so it stands for the whole
prefix. Never on the hot path: matching compares tokens, and so does whoever reads a block by its name.
"""

from hashlib import blake2b

from prefix_cache.node import Namespace

__all__ = ["NAME_BYTES", "block_name", "root_name"]

NAME_BYTES = 16


def root_name(fingerprint: bytes) -> bytes:
    """Where all paths begin, for one model and one layout of its blocks."""
    return _hash(b"root", fingerprint)


def block_name(parent: bytes, namespace: Namespace, tokens: bytes) -> bytes:
    """The name of the block that holds these tokens, packed, after the parent's."""
    return _hash(b"block", parent, namespace, tokens)


def _hash(kind: bytes, *fields: bytes) -> bytes:
    state = blake2b(digest_size=NAME_BYTES, person=kind)
    for each in fields:
        state.update(len(each).to_bytes(4, "little"))
        state.update(each)
    return state.digest()
