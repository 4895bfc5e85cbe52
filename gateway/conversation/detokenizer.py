"""Token ids to text, as they come: whole characters only.

It owns the bytes of a character that is not complete yet. Invariant: what `push` returned, joined, is the
text that decoding all bytes at once gives, but without a character left unfinished at the very end: that one
is dropped, streamed or not.
"""

import codecs
from collections.abc import Iterable, Sequence

from gateway.conversation.tokenizer import Tokenizer

__all__ = ["Detokenizer", "detokenize"]

_MAX_PENDING = 16  # tokens, some without bytes, that may end in an unfinished character


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

    def prime(self, ids: Sequence[int]) -> None:
        """Begin in the middle: what follows continues these ids, whose own text is not told."""
        # a character has four bytes at most, so what came earlier is complete
        for token_id in ids[-_MAX_PENDING:]:
            self.push(token_id)


def detokenize(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """The text of a whole answer, by the same rule as the stream's."""
    detokenizer = Detokenizer(tokenizer)
    return "".join([detokenizer.push(token_id) for token_id in ids])
