"""Token ids as the tree holds them: packed int32, compared as bytes.

Every id takes four bytes, so comparing bytes orders runs of tokens lexicographically (by each id's bytes),
and runs that share a longer prefix stand closer together in a sorted list. No other property of the order is
used.
"""

from array import array
from collections.abc import Iterable

__all__ = ["TOKEN_BYTES", "common_prefix", "matchable", "pack"]

TOKEN_BYTES = 4


def pack(token_ids: Iterable[int]) -> bytes:
    """Ids as packed int32 in the machine's byte order."""
    return array("i", token_ids).tobytes()


def matchable(tokens: bytes, max_matched: int | None) -> bytes:
    """The part of a packed prompt that may be found in a cache: all but its last token, which is computed
    for its logits, and at most so many.
    """
    known = len(tokens) // TOKEN_BYTES - 1
    return tokens[: (known if max_matched is None else min(known, max_matched)) * TOKEN_BYTES]


def common_prefix(first: bytearray, second: bytearray) -> int:
    """How many leading tokens two packed runs share; costs about one pass of memcmp."""
    low, high = 0, min(len(first), len(second)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        span = slice(low * TOKEN_BYTES, middle * TOKEN_BYTES)
        if first[span] == second[span]:
            low = middle
        else:
            high = middle - 1
    return low
