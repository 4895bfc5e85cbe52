"""Tokenizers that tiktoken cannot express, on the `tokenizers` library: SentencePiece vocabularies, and
byte-level ones whose ids are in no order of merges.

It owns how such a pipeline is made from a model's own words and read back as bytes. Special tokens are not
told to the library at all, because it would find them in text that a client wrote. Invariant: `encode` yields
no special id but the unknown token's.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gateway.conversation.byte_alphabet import to_bytes
from gateway.conversation.vocabulary import Vocabulary

__all__ = ["PieceTokenizer", "byte_level_pipeline", "bytes_of_piece", "sentencepiece_pipeline"]

_BLANK = "\u2581"  # how SentencePiece spells a space


class PieceTokenizer:
    """A pipeline of the `tokenizers` library, and the special tokens that it does not know."""

    def __init__(
        self,
        pipeline: Any,
        *,
        special: Mapping[str, int],
        control_ids: frozenset[int],
        to_bytes: Callable[[str], bytes],
    ) -> None:
        self.special_tokens: Mapping[str, int] = dict(special)
        self.control_ids = control_ids
        self._pipeline = pipeline
        self._to_bytes = to_bytes
        self._special_text = {i: b"" if i in control_ids else s.encode() for s, i in special.items()}
        self.vocab_size = 1 + max([pipeline.get_vocab_size() - 1, *special.values()])
        described = f"{pipeline.to_str()}{sorted(special.items())}{sorted(control_ids)}"
        self.digest = blake2b(described.encode(), digest_size=32).digest()

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. Raises ValueError for lone surrogates."""
        text.encode()
        ids: list[int] = self._pipeline.encode(text, add_special_tokens=False).ids if text else []
        return ids

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text: none for control tokens and for ids outside the
        vocabulary.
        """
        special = self._special_text.get(token_id)
        if special is not None:
            return special
        piece = self._pipeline.id_to_token(token_id)
        return b"" if piece is None else self._to_bytes(piece)


def byte_level_pipeline(vocabulary: Vocabulary) -> PieceTokenizer:
    """A byte-level vocabulary whose merges are not in the order of ids."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
    pipeline = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    if vocabulary.compose:
        pipeline.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(vocabulary.pattern), behavior="isolated")
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([words, alphabet])
    pipeline.decoder = decoders.ByteLevel()
    return PieceTokenizer(
        pipeline, special=vocabulary.special, control_ids=vocabulary.control_ids, to_bytes=to_bytes
    )


def sentencepiece_pipeline(
    tokens: Sequence[str],
    scores: Sequence[float],
    *,
    special: Mapping[str, int],
    control_ids: frozenset[int],
    add_space_prefix: bool,
) -> PieceTokenizer:
    """A SentencePiece BPE vocabulary, which states scores of pieces where others list merges: the best piece
    is merged first.
    """
    special_ids = frozenset(special.values())
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    score_of = {token: scores[i] for token, i in ids.items() if i not in special_ids}
    unknown = next((token for token, i in special.items() if token == "<unk>" and i in control_ids), None)
    pipeline = Tokenizer(
        models.BPE(
            vocab=ids, merges=_merges(score_of, ids), byte_fallback=True, fuse_unk=True, unk_token=unknown
        )
    )
    steps = [normalizers.Prepend(_BLANK)] if add_space_prefix else []
    pipeline.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
    return PieceTokenizer(pipeline, special=special, control_ids=control_ids, to_bytes=bytes_of_piece)


def bytes_of_piece(piece: str) -> bytes:
    """What a SentencePiece piece stands for: `<0xE2>` is one byte, a low line in block form is a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace(_BLANK, " ").encode()


def _merges(score_of: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    splits = [
        (-score, ids[piece[:at]], ids[piece[at:]], piece[:at], piece[at:])
        for piece, score in score_of.items()
        for at in range(1, len(piece))
        if piece[:at] in score_of and piece[at:] in score_of
    ]
    return [(left, right) for *_, left, right in sorted(splits)]
