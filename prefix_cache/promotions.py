"""Blocks of colder tiers on their way into a lease.

A lease that loads has its blocks already; what arrives in them is committed to the device's tree as if it had
been computed. If a copy fails, what stood before it is kept and the rest is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prefix_cache.disk_index import path_records
from prefix_cache.lease import Lease
from prefix_cache.node import Namespace
from prefix_cache.paths import Hold
from prefix_cache.plan import BlockCopy, BlockRecord, Tier, Transfer
from prefix_cache.tokens import TOKEN_BYTES
from prefix_cache.tree import PrefixCache

__all__ = ["Loading", "Part", "Piece", "find_pieces", "plan_loading"]


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
                break
            end = max(end, min(part.end, part.start + part.num_done * block_size))
            if part.num_done < len(part.transfer.copies):
                break
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


def plan_loading(lease: Lease, tokens: bytes, pieces: Sequence[Piece], fingerprint: bytes) -> Loading:
    """Transfers into a lease whose match ends on a block boundary and whose blocks reach the last piece."""
    loading = Loading(lease, tokens[: pieces[-1].end * TOKEN_BYTES])
    for piece in pieces:
        tree = piece.tree
        block_size = tree.block_size
        prefix = tokens[: piece.end * TOKEN_BYTES]
        hold = tree.hold(lease.namespace, prefix)
        start = max(lease.num_matched, piece.start // block_size * block_size)
        first = start // block_size
        copies = tuple(
            BlockCopy(
                tree.tier,
                hold.blocks[place],
                Tier.DEVICE,
                lease.blocks[place],
                min(block_size, piece.end - place * block_size),
            )
            for place in range(first, len(hold.blocks))
        )
        records: tuple[BlockRecord, ...] = ()
        if tree.tier is Tier.DISK:
            held = hold.node.path_tokens()[: len(hold.blocks) * block_size * TOKEN_BYTES]
            records = path_records(hold.node, first, held, block_size, fingerprint)
        loading.parts.append(
            Part(Transfer(tree.tier, Tier.DEVICE, copies, records), tree, hold, start, piece.end)
        )
    return loading
