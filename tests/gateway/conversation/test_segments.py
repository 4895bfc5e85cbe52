"""Cutting long text changes neither the text nor, between words, the ids."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.segments import MAX_SEGMENT, segments
from gateway.conversation.split_patterns import GPT2, LLAMA3, QWEN2, SMOLLM
from tests.gateway.conversation.test_byte_bpe import REFERENCES, TOKENIZERS


@given(filler=st.sampled_from(["a", " ", "ab ", "中", "1"]), length=st.integers(0, 3 * MAX_SEGMENT))
@settings(deadline=None)
def test_segments_join_to_the_text_and_keep_the_limit(filler: str, length: int) -> None:
    text = (filler * length)[:length]
    parts = list(segments(text))

    assert "".join(parts) == text
    assert all(len(part) <= MAX_SEGMENT for part in parts)


def test_short_text_is_one_segment() -> None:
    assert list(segments("a b")) == ["a b"]


@given(
    words=st.lists(
        st.sampled_from(["the", " ", "\n", "...", "!\n", "12", "'ll", "é", "中。", "\u0301", "\t "])
    )
)
@settings(deadline=None, max_examples=8)
def test_long_text_with_places_to_cut_has_the_reference_s_ids(words: list[str]) -> None:
    unit = "".join([*words, "x. ", *words, "y\n z"])
    text = unit * (1 + 2 * MAX_SEGMENT // len(unit))

    for pattern in (GPT2, SMOLLM, LLAMA3, QWEN2):
        assert TOKENIZERS[pattern].encode(text) == REFERENCES[pattern].encode(text).ids


def test_one_endless_word_is_cut_and_loses_nothing(tiny: ByteBPE) -> None:
    ids = tiny.encode("the" * MAX_SEGMENT)

    assert b"".join(tiny.decode_bytes(token_id) for token_id in ids) == b"the" * MAX_SEGMENT
