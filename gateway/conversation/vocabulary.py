"""A byte-level BPE vocabulary as a model's files state it, before anything runs on it.

It owns which token is what; it does not encode. Invariant: a spelling in `special` is never an ordinary
token, and ordinary tokens are spelled in the byte alphabet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.conversation.byte_alphabet import to_bytes

__all__ = ["Vocabulary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens, merges, and how text is cut into words before merging."""

    tokens: Sequence[str]  # of each id: specials as they stand, others in the byte alphabet, "" if never used
    merges: Sequence[tuple[str, str]]  # best first
    special: dict[str, int]  # control tokens and those a user added
    control_ids: frozenset[int]  # those of `special` that are not text
    pattern: str  # of words
    compose: bool = False  # whether text is brought to NFC first

    def ordinary(self) -> dict[bytes, int]:
        """The bytes of every token that text may become, and its id. Raises ValueError for a spelling outside
        the alphabet.
        """
        special_ids = frozenset(self.special.values())
        ids = (token_id for token_id in range(len(self.tokens)) if token_id not in special_ids)
        return {to_bytes(self.tokens[token_id]): token_id for token_id in ids if self.tokens[token_id]}

    def suits_ranks(self) -> bool:
        """Whether ids may serve as ranks: merges stand in the order of ids, and no text is cut out before
        words.

        In order means that the ids of what merges make only grow, each from parts with lower ids or from
        single bytes; several merges may make the same token. Some models add runs of blanks to a vocabulary,
        which are then found in any text before it is cut into words.
        """
        if any(spelling.isspace() for spelling in self.special):
            return False
        id_of = {spelling: token_id for token_id, spelling in enumerate(self.tokens)}
        latest = -1
        for left, right in self.merges:
            made = id_of.get(left + right)
            if made is None or made < latest:
                return False
            if any(len(part) > 1 and id_of.get(part, made) >= made for part in (left, right)):
                return False
            latest = made
        return True

    def digest(self) -> bytes:
        """Over everything that decides which ids a text becomes."""
        state = blake2b(digest_size=32)
        for line in (self.pattern, str(self.compose), *self.tokens, *(f"{a} {b}" for a, b in self.merges)):
            state.update(line.encode())
            state.update(b"\n")
        for spelling, token_id in sorted(self.special.items()):
            state.update(f"{spelling} {token_id} {token_id in self.control_ids}\n".encode())
        return state.digest()
