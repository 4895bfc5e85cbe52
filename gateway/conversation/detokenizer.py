"""Token ids to text, as they come: whole characters only.

It owns the bytes of a character that is not complete yet. Invariant: what `push` returned, joined, is the
text that decoding all bytes at once gives, without a character left unfinished at the very end: such a
character is dropped, streamed or not.
"""

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.conversation.tokenizer import Tokenizer

__all__ = ["Detokenizer", "TokenText", "detokenize", "token_text"]


class Detokenizer:
    """The text of one choice. Control tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; bytes that can never be part of one become U+FFFD."""
        return self._decoder.decode(self._tokenizer.decode_bytes(token_id))

    @property
    def is_complete(self) -> bool:
        """Whether no character is unfinished."""
        return not self._decoder.getstate()[0]


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token as log-probabilities name it."""

    text: str  # `bytes:\xe2\x82` where the bytes alone are no text
    data: bytes


def detokenize(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of a whole answer, by the same rule as the stream's."""
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(token_id) for token_id in ids])


def token_text(tokenizer: Tokenizer, token_id: int) -> TokenText:
    """A control token, which adds no text to an answer, is named by its spelling."""
    data = tokenizer.decode_bytes(token_id)
    if not data:
        spellings = (s for s, special_id in tokenizer.special_tokens.items() if special_id == token_id)
        data = next(spellings, "").encode()
    try:
        return TokenText(data.decode(), data)
    except UnicodeDecodeError:
        return TokenText("bytes:" + "".join([f"\\x{byte:02x}" for byte in data]), data)
