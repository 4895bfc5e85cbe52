"""Blocks of colder tiers on their way into leases.

A lease that loads has its blocks already; what arrives in them is committed to the device's tree as if it had
been computed. If a copy fails, what stood before it is kept and the rest is computed.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prefix_cache.disk_index import path_records
from prefix_cache.lease import Lease
from prefix_cache.node import Namespace
from prefix_cache.paths import Hold
from prefix_cache.plan import BlockRecord, Tier, Transfer, copies_along
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["Loading", "Part", "Piece", "Promotions", "find_pieces"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, end) of a prefix, to be had from one colder tier."""

    tree: PrefixCache
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Part:
    """One transfer of a loading lease."""

    transfer: Transfer
    tree: PrefixCache
    hold: Hold
    start: int  # tokens before its first block
    end: int
    is_taken: bool = False
    num_done: int | None = None  # copies; None while it is not over


@dataclass(slots=True, eq=False)
class Loading:
    """What a lease waits for."""

    lease: Lease
    tokens: bytes  # the prefix up to the last token that is promoted
    parts: list[Part] = field(default_factory=list)
    is_abandoned: bool = False  # the lease's owner has gone; it is released when the last copy ends

    @property
    def is_over(self) -> bool:
        """Whether no copy is waited for any more."""
        return all(part.num_done is not None for part in self.parts)

    def reached(self, block_size: int) -> int:
        """Tokens that lie in the lease's blocks without a gap."""
        end = self.lease.num_matched
        for part in self.parts:
            assert part.num_done is not None, "a copy is still running"
            if part.start > end:
                break  # the part before it fell short
            end = max(end, min(part.end, part.start + part.num_done * block_size))
        return end


def find_pieces(trees: Sequence[PrefixCache], namespace: Namespace, tokens: bytes, warm: int) -> list[Piece]:
    """What colder tiers, warmest first, have of a prefix beyond the `warm` tokens on the device.

    No block comes from two tiers: where a warmer one has less of a block than a colder one, it gives none.
    """
    pieces: list[Piece] = []
    end = warm
    for tree in trees:
        length = tree.match_length(namespace, tokens)
        if length <= end:
            continue
        if pieces:
            end = end // tree.block_size * tree.block_size
            last = pieces.pop()
            if last.start < end:
                pieces.append(Piece(last.tree, last.start, end))
        pieces.append(Piece(tree, min(end, length), length))
        end = length
    return pieces


class Promotions:
    """All leases that load, and the transfers that they wait for."""

    def __init__(self, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._loadings: dict[Lease, Loading] = {}
        self._waiting: deque[tuple[Loading, Part]] = deque()  # nobody has taken them yet
        self._out: dict[Transfer, tuple[Loading, Part]] = {}

    @property
    def num_out(self) -> int:
        """Transfers that were taken and are not over."""
        return len(self._out)

    @property
    def leases(self) -> Iterable[Lease]:
        """The leases that load."""
        return self._loadings

    @property
    def holds(self) -> Iterable[tuple[PrefixCache, Hold]]:
        """The paths on colder tiers that are held."""
        for loading in self._loadings.values():
            yield from ((part.tree, part.hold) for part in loading.parts if part.num_done is None)

    def is_loading(self, lease: Lease) -> bool:
        """Whether blocks of a lease are on their way."""
        return lease in self._loadings

    def begin(self, lease: Lease, tokens: bytes, pieces: Sequence[Piece]) -> None:
        """Fill a lease, whose match ends on a block boundary and whose blocks reach the last piece."""
        loading = Loading(lease, tokens[: pieces[-1].end * TOKEN_BYTES])
        loading.parts = [self._part(lease, tokens, piece) for piece in pieces]
        self._loadings[lease] = loading
        self._waiting += [(loading, part) for part in loading.parts]

    def take(self) -> Transfer | None:
        """The next transfer to carry out."""
        if not self._waiting:
            return None
        loading, part = self._waiting.popleft()
        part.is_taken = True
        self._out[part.transfer] = (loading, part)
        return part.transfer

    def abandon(self, lease: Lease) -> bool:
        """A loading lease's owner has gone: cancel what nobody has taken. True if nothing else is out."""
        loading = self._loadings[lease]
        for part in loading.parts:
            if not part.is_taken:
                part.num_done = 0
                part.tree.let_go(part.hold)
        self._waiting = deque(item for item in self._waiting if item[0] is not loading)
        loading.is_abandoned = not loading.is_over
        if loading.is_over:
            del self._loadings[lease]
        return loading.is_over

    def knows(self, transfer: Transfer) -> bool:
        """Whether a transfer that is out is one of these."""
        return transfer in self._out

    def finish(self, transfer: Transfer, num_done: int, now: float) -> Loading | None:
        """A transfer is over; answers the loading if it was the last that its lease waited for."""
        loading, part = self._out.pop(transfer)
        part.num_done = num_done
        part.tree.let_go(part.hold, now=now)
        if not loading.is_over:
            return None
        del self._loadings[loading.lease]
        return loading

    def cut_damaged(self, transfer: Transfer, num_done: int) -> None:
        """Remove the block that follows the first `num_done` of a transfer that is out, and all below it.

        Not while this or another transfer holds it; then the next reader finds it again.
        """
        loading, part = self._out[transfer]
        end = min(part.start + (num_done + 1) * part.tree.block_size, part.end)
        part.tree.let_go(part.hold)
        part.tree.cut(loading.lease.namespace, loading.tokens[: end * TOKEN_BYTES])
        part.hold = part.tree.hold(loading.lease.namespace, loading.tokens)

    def _part(self, lease: Lease, tokens: bytes, piece: Piece) -> Part:
        tree, block_size = piece.tree, piece.tree.block_size
        hold = tree.hold(lease.namespace, tokens[: piece.end * TOKEN_BYTES])
        assert hold.num_tokens == piece.end, "what was found a moment ago is there"
        start = max(lease.num_matched, piece.start // block_size * block_size)
        first = start // block_size
        copies = copies_along(
            (tree.tier, hold.blocks),
            (Tier.DEVICE, lease.blocks),
            first=first,
            num_tokens=piece.end,
            block_size=block_size,
        )
        records: tuple[BlockRecord, ...] = ()
        if tree.tier is Tier.DISK:
            held = hold.node.path_tokens()[: len(hold.blocks) * block_size * TOKEN_BYTES]
            namespaces = hold.node.path_namespaces()
            records = path_records(namespaces, first, held, block_size, self._fingerprint)
        return Part(Transfer(tree.tier, Tier.DEVICE, copies, records), tree, hold, start, piece.end)
