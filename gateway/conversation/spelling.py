"""Tokens as log-probabilities name them: by their bytes and their text, whatever they are.

It owns the rule for tokens that are no text alone, and for control tokens, which an answer never shows.
"""

from collections.abc import Iterable

from gateway.conversation.tokenizer import Tokenizer

__all__ = ["Spelling"]


class Spelling:
    """The names of one vocabulary's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {token_id: text.encode() for text, token_id in tokenizer.special_tokens.items()}

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes, or the spelling of a control token; none for what is no token."""
        return self._tokenizer.decode_bytes(token_id) or self._special.get(token_id, b"")

    def text_of_all(self, token_ids: Iterable[int]) -> str:
        """The text of tokens that follow each other; bytes that are none become U+FFFD."""
        return b"".join([self.bytes_of(token_id) for token_id in token_ids]).decode(errors="replace")

    def text_of(self, token_id: int) -> str:
        r"""The same as text; `bytes:\xe2\x82` where the bytes alone are none."""
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])
