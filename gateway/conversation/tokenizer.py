"""What the house asks of a tokenizer, and what a loader says when it cannot give one.

Invariant of every implementation: ids of special tokens come only from looking them up in `special_tokens`,
never from `encode`, whatever the text spells. So text that a client wrote cannot become a control token.
"""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Tokenizer", "TokenizerUnsupported"]


class TokenizerUnsupported(ValueError):
    """The model's files describe a tokenizer that is not served; the message names what was found."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Spellings that a template may turn into ids: control tokens and those that a user added to the
        vocabulary.
        """
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """The special tokens that are not text: an answer never shows them."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        ...

    @property
    def digest(self) -> bytes:
        """Equal for tokenizers that give equal ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. Raises ValueError for text that UTF-8 cannot carry (lone surrogates)."""
        ...

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text: none for control tokens and for ids outside the
        vocabulary.
        """
        ...
