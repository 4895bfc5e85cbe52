"""Blocks with causal memory: each slot stores a digest of its token and of everything before it, as real KV
does.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from prefix_cache.plan import BlockCopy


class DigestMemory:
    """The contents of a pool's blocks. Reading goes through a block table, so a wrong block shows as a wrong
    digest.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[list[bytes | None]] = [[None] * block_size for _ in range(num_blocks)]

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Carry out a plan all at once: every source is read before any target is written."""
        read = [(copy, self.slots[copy.source_block][: copy.num_tokens]) for copy in copies]
        for copy, slots in read:
            self.slots[copy.target_block] = slots + [None] * (self.block_size - copy.num_tokens)

    def compute(self, blocks: Sequence[int], tokens: Sequence[int], start: int, end: int) -> bytes:
        """Write tokens[start:end], each from the slot before it; returns the last digest."""
        digest = self.read(blocks, start)
        for position in range(start, end):
            digest = _digest(digest, tokens[position])
            self.slots[blocks[position // self.block_size]][position % self.block_size] = digest
        return digest

    def read(self, blocks: Sequence[int], num_tokens: int) -> bytes:
        """The digest in the slot of the last of `num_tokens` tokens."""
        if num_tokens == 0:
            return b""
        block, slot = divmod(num_tokens - 1, self.block_size)
        digest = self.slots[blocks[block]][slot]
        assert digest is not None, f"slot {slot} of block {blocks[block]} is read before it was written"
        return digest

    def check(self, blocks: Sequence[int], tokens: Sequence[int], num_tokens: int) -> None:
        """Every slot of the prefix holds what computing it from nothing would have put there."""
        digest = b""
        for position in range(num_tokens):
            digest = _digest(digest, tokens[position])
            block, slot = divmod(position, self.block_size)
            assert self.slots[blocks[block]][slot] == digest, f"token {position} has another's memory"


def _digest(before: bytes, token: int) -> bytes:
    return blake2b(before + token.to_bytes(4, "little"), digest_size=8).digest()
