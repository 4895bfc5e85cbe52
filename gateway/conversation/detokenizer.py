"""Token ids to text, as they come: whole characters only.

It owns the bytes of a character that is not complete yet. Invariant: what `push` returned, joined, is the
text that decoding all bytes at once gives, but without a character left unfinished at the very end: that one
is dropped, streamed or not.
"""

import codecs
from collections.abc import Iterable

from gateway.conversation.tokenizer import Tokenizer

__all__ = ["Detokenizer", "detokenize"]


class Detokenizer:
    """The text of one choice. Control tokens have none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; bytes that can never be part of one become U+FFFD."""
        return self._decoder.decode(self._tokenizer.decode_bytes(token_id))

    def flush(self) -> str:
        """Ends the text. An unfinished character is dropped, so there is nothing left to send."""
        self._decoder.reset()
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        """A token as log-probabilities name it: its bytes, or the spelling of a control token."""
        data = self._tokenizer.decode_bytes(token_id)
        if data:
            return data
        special = self._tokenizer.special_tokens.items()
        return next((spelling.encode() for spelling, special_id in special if special_id == token_id), b"")

    def token_text(self, token_id: int) -> str:
        r"""The same as text; `bytes:\xe2\x82` where the bytes alone are none."""
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


def detokenize(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of a whole answer, by the same rule as the stream's."""
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(token_id) for token_id in ids])
