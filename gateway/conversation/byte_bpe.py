"""Byte-level BPE on tiktoken, with ranks made from the model's own vocabulary.

It owns the encoding; which pattern cuts words is the vocabulary's. Many vocabularies lack some single bytes,
and an encoder without them panics, so each missing byte gets a filler rank past the vocabulary's end that is
dropped after encoding. Invariant: any text that UTF-8 can carry is encoded, in time linear in its length, and
yields ordinary ids only.
"""

from collections.abc import Mapping

import tiktoken
from tokenizers.normalizers import NFC

from gateway.conversation.segments import segments
from gateway.conversation.vocabulary import Vocabulary

__all__ = ["ByteBPE"]


class ByteBPE:
    """A tokenizer whose ids are tiktoken's ranks. Its vocabulary's merges must be in the order of ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        ranks = vocabulary.ordinary()
        self.special_tokens: Mapping[str, int] = dict(vocabulary.special)
        self.control_ids = vocabulary.control_ids
        self.vocab_size = len(vocabulary.tokens)
        self.digest = vocabulary.digest()
        self._special_text = {
            token_id: b"" if token_id in self.control_ids else spelling.encode()
            for spelling, token_id in self.special_tokens.items()
        }
        self._ordinary_ids = frozenset(ranks.values())
        self._compose = vocabulary.compose
        missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
        fillers = {bytes([byte]): self.vocab_size + place for place, byte in enumerate(missing)}
        self._encoding = tiktoken.Encoding(
            "model", pat_str=vocabulary.pattern, mergeable_ranks=ranks | fillers, special_tokens={}
        )

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; bytes that the vocabulary lacks are left out. Raises ValueError for lone
        surrogates.
        """
        text.encode()  # tiktoken itself would replace surrogates and say nothing
        if self._compose:
            text = NFC().normalize_str(text)  # linear where Python's own takes the square of a run of accents
        ids: list[int] = []
        for segment in segments(text):
            ids += self._encoding.encode_ordinary(segment)
        return [token_id for token_id in ids if token_id < self.vocab_size]

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text: none for control tokens and for ids outside the
        vocabulary.
        """
        if token_id in self._ordinary_ids:
            return self._encoding.decode_single_token_bytes(token_id)
        return self._special_text.get(token_id, b"")
