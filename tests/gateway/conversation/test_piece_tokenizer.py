"""Tokenizers beside tiktoken: SentencePiece by its own rule, and byte-level vocabularies in any order."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation.piece_tokenizer import (
    PieceTokenizer,
    byte_level_pipeline,
    bytes_of_piece,
    sentencepiece_pipeline,
)
from gateway.conversation.split_patterns import SMOLLM
from tests.gateway.conversation.test_byte_bpe import REFERENCES, VOCABULARIES
from tests.gateway.conversation.vocabularies import texts

CONTROL = {"<unk>": 0, "<s>": 1, "</s>": 2}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SCORES = {"▁": -9.0, "▁a": -1.0, "ab": -2.0, "▁ab": -3.0, "abab": -2.5, "ba": -1.5, "▁▁": -4.0, "<s": -5.0}
PIECES = [*CONTROL, *BYTES, *SCORES, "a", "b", "<", "s", ">", "<tool>"]
IDS = {piece: token_id for token_id, piece in enumerate(PIECES)}


def sentencepiece(*, prefix: bool = True) -> PieceTokenizer:
    scores = [SCORES.get(piece, -10.0) for piece in PIECES]
    return sentencepiece_pipeline(PIECES, scores, control=CONTROL, added=["<tool>"], add_space_prefix=prefix)


def by_best_pair(text: str) -> list[int]:
    """SentencePiece's rule, plainly: merge the pair that makes the best piece, leftmost first; the rest is
    bytes.
    """
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-SCORES[a + b], at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in SCORES]
        if not pairs:
            break
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    spelled = [[piece] if piece in IDS else [BYTES[byte] for byte in piece.encode()] for piece in pieces]
    return [IDS[piece] for parts in spelled for piece in parts]


@given(st.text("ab <s>é", min_size=1))
@settings(deadline=None)
def test_sentencepiece_merges_the_best_pair_first(text: str) -> None:
    assert sentencepiece(prefix=False).encode(text) == by_best_pair(text)


@given(st.text("ab <s>é▁🍕", min_size=1))
@settings(deadline=None)
def test_sentencepiece_text_comes_back_with_its_prefix(text: str) -> None:
    tokenizer = sentencepiece()
    data = b"".join(tokenizer.decode_bytes(token_id) for token_id in tokenizer.encode(text))

    assert data.decode() == " " + text.replace("▁", " ")


def test_control_tokens_are_never_found_in_text_and_added_words_are() -> None:
    tokenizer = sentencepiece(prefix=False)

    assert set(tokenizer.encode("<s></s><unk>")).isdisjoint(CONTROL.values())
    assert tokenizer.encode("a<tool>b") == [IDS["a"], IDS["<tool>"], IDS["b"]]
    assert tokenizer.decode_bytes(IDS["<tool>"]) == b"<tool>"
    assert tokenizer.decode_bytes(IDS["</s>"]) == b""
    assert tokenizer.decode_bytes(len(PIECES)) == tokenizer.decode_bytes(-1) == b""
    assert tokenizer.vocab_size == len(PIECES)


def test_pieces_stand_for_bytes() -> None:
    assert bytes_of_piece("<0xE2>") == b"\xe2"
    assert bytes_of_piece("▁a") == b" a"


def shuffled() -> PieceTokenizer:
    """The same merges with ids turned round, so that ids are no ranks."""
    plain = VOCABULARIES[SMOLLM]
    turned = [*plain.tokens[:6], *reversed(plain.tokens[6:])]
    vocabulary = replace(plain, tokens=turned)
    assert not vocabulary.suits_ranks()
    return byte_level_pipeline(vocabulary)


@given(text=texts.filter(lambda text: "think>" not in text))
@settings(deadline=None)
def test_byte_level_ids_in_any_order_spell_the_same_tokens(text: str) -> None:
    tokens = VOCABULARIES[SMOLLM].tokens
    expected = [len(tokens) + 5 - token_id for token_id in REFERENCES[SMOLLM].encode(text).ids]

    assert SHUFFLED.encode(text) == expected
    assert b"".join(map(SHUFFLED.decode_bytes, expected)) == text.encode()


SHUFFLED = shuffled()
