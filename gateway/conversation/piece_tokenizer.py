"""Tokenizers that tiktoken cannot express, on the `tokenizers` library: SentencePiece vocabularies, and byte-
level ones whose ids are in no order of merges or whose added words are found before anything else.

It owns how such a pipeline is made from a model's vocabulary and read back as bytes. Invariant: `encode`
yields no control token but the one for unknown text. The library is told not to look for control tokens in
text; should a model make one of plain text all the same, it is left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from gateway.conversation.byte_alphabet import to_bytes
from gateway.conversation.tokenizer import TokenizerUnsupported
from gateway.conversation.vocabulary import Vocabulary

__all__ = ["PieceTokenizer", "byte_level_pipeline", "bytes_of_piece", "sentencepiece_pipeline"]

_BLANK = "\u2581"  # how SentencePiece spells a space


class PieceTokenizer:
    """A pipeline of the `tokenizers` library.

    Words that a user added to the vocabulary are the pipeline's: it finds them in any text.
    """

    def __init__(self, pipeline: Any, *, control: Mapping[str, int], spelled: Callable[[str], bytes]) -> None:
        """`spelled` gives the bytes that an ordinary piece stands for. Changes the pipeline."""
        pipeline.encode_special_tokens = True  # as text, that is
        self.special_tokens: Mapping[str, int] = dict(control)
        self.control_ids = frozenset(control.values())
        self._pipeline = pipeline
        self._spelled = spelled
        self._unwanted = self.control_ids - {_unknown_id(pipeline.model)}
        self._added: dict[int, bytes] = {
            token_id: token.content.encode()
            for token_id, token in pipeline.get_added_tokens_decoder().items()
        }
        self.vocab_size = 1 + max([*pipeline.get_vocab().values(), *control.values()])
        described = f"{pipeline.to_str()}{sorted(control.items())}"
        self.digest = blake2b(described.encode(), digest_size=32).digest()

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text. Raises ValueError for lone surrogates."""
        text.encode()
        ids = self._pipeline.encode(text, add_special_tokens=False).ids
        return [token_id for token_id in ids if token_id not in self._unwanted]

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text: none for control tokens and for unknown ids."""
        if token_id < 0 or token_id in self.control_ids:
            return b""
        if token_id in self._added:
            return self._added[token_id]
        piece = self._pipeline.id_to_token(token_id)
        return b"" if piece is None else self._spelled(piece)


def byte_level_pipeline(vocabulary: Vocabulary) -> PieceTokenizer:
    """A byte-level vocabulary whose merges are not in the order of ids."""
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
    pipeline = _bpe(vocab=ids, merges=list(vocabulary.merges))
    if vocabulary.compose:
        pipeline.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(vocabulary.pattern), behavior="isolated")
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([words, alphabet])
    control = {s: i for s, i in vocabulary.special.items() if i in vocabulary.control_ids}
    _add(pipeline, vocabulary.special.keys() - control.keys())
    return PieceTokenizer(pipeline, control=control, spelled=to_bytes)


def sentencepiece_pipeline(
    tokens: Sequence[str],
    scores: Sequence[float],
    *,
    control: Mapping[str, int],
    added: Iterable[str],
    add_space_prefix: bool,
) -> PieceTokenizer:
    """A SentencePiece BPE vocabulary. It states scores of pieces where others list merges: of the pairs that
    make a piece, the one that makes the best is merged first.
    """
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    outside = {*control, *added}
    score_of = {token: scores[token_id] for token, token_id in ids.items() if token not in outside}
    unknown = "<unk>" if "<unk>" in control else None
    merges = _merges(score_of, ids)
    pipeline = _bpe(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    blanks = normalizers.Replace(" ", _BLANK)
    prefixed = normalizers.Sequence([normalizers.Prepend(_BLANK), blanks])
    pipeline.normalizer = prefixed if add_space_prefix else blanks
    _add(pipeline, added)
    return PieceTokenizer(pipeline, control=control, spelled=bytes_of_piece)


def bytes_of_piece(piece: str) -> bytes:
    """What a SentencePiece piece stands for: `<0xE2>` is one byte, U+2581 is a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace(_BLANK, " ").encode()


def _bpe(**parts: Any) -> Any:
    try:
        return Tokenizer(models.BPE(**parts))
    except Exception as error:  # the library raises Exception itself
        raise TokenizerUnsupported(f"the model's merges do not fit its vocabulary: {error}") from error


def _unknown_id(model: Any) -> int | None:
    unknown = getattr(model, "unk_token", None)
    return getattr(model, "unk_id", None) if unknown is None else model.token_to_id(unknown)


def _add(pipeline: Any, words: Iterable[str]) -> None:
    pipeline.add_tokens([AddedToken(word, normalized=False, special=False) for word in sorted(words)])


def _merges(score_of: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    splits = [
        (-score, ids[piece[:at]], ids[piece[at:]], piece[:at], piece[at:])
        for piece, score in score_of.items()
        for at in range(1, len(piece))
        if piece[:at] in score_of and piece[at:] in score_of
    ]
    return [(left, right) for *_, left, right in sorted(splits)]
