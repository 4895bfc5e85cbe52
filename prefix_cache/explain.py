"""Why a prompt was not found whole: how much came from where, and where it parted from what is known."""

from collections.abc import Sequence
from typing import Protocol

from prefix_cache.lease import Explanation, Reason
from prefix_cache.node import Namespace
from prefix_cache.plan import Tier
from prefix_cache.promotions import Piece
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["Remembers", "explain"]


class Remembers(Protocol):
    """What was asked for lately, whether it is still here or not."""

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """How many leading tokens were asked for lately."""
        ...

    def forget(self, namespace: Namespace, tokens: bytes, num_kept: int) -> None:
        """No longer remember a request beyond its first `num_kept` tokens."""
        ...


def explain(
    device: PrefixCache,
    namespace: Namespace,
    known: bytes,
    *,
    num_warm: int,
    pieces: Sequence[Piece],
    num_used: int,
    num_remembered: int,
) -> Explanation:
    """Of the tokens `known` (a prompt without its last), `num_warm` lie on the device, and of the `pieces`
    that colder tiers have of the rest the first `num_used` are used. `num_remembered` were asked for lately.
    """
    found = {Tier.DEVICE: num_warm}
    for piece in pieces[:num_used]:
        found[piece.tree.tier] = piece.end - piece.start
    furthest = pieces[-1].tree if pieces else device
    parted_at = pieces[-1].end if pieces else num_warm
    return Explanation(
        found,
        parted_at,
        "recomputed"
        if num_used < len(pieces)
        else _reason(furthest, namespace, known, parted_at, num_remembered),
    )


def _reason(
    tree: PrefixCache, namespace: Namespace, known: bytes, parted_at: int, num_remembered: int
) -> Reason:
    if parted_at == len(known) // TOKEN_BYTES:
        return "none"
    if num_remembered > parted_at:
        return "evicted"
    if parted_at == 0:
        return "empty"
    return "parted" if tree.goes_on(namespace, known) else "new"
