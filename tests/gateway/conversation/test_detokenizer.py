"""Streamed text is whole characters, and the same as decoding at once."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.detokenizer import Detokenizer, detokenize

# ids of the tiny vocabulary: specials first, then every byte, then what merges made
any_ids = st.lists(st.integers(0, 520) | st.integers(6, 261))


def byte_ids(tokenizer: ByteBPE, data: bytes) -> list[int]:
    """One token a byte."""
    ids = {tokenizer.decode_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [ids[bytes([byte])] for byte in data]


@given(any_ids)
def test_streamed_text_is_the_text_decoded_at_once(tiny: ByteBPE, ids: list[int]) -> None:
    data = b"".join(tiny.decode_bytes(token_id) for token_id in ids)

    streamed = detokenize(tiny, ids)

    whole = data.decode(errors="replace")
    unfinished = whole.removeprefix(streamed)
    assert streamed + unfinished == whole
    assert unfinished == "\ufffd" * len(unfinished)
    assert len(unfinished) <= 3


@given(st.text(), st.integers(0, 3))
def test_a_text_cut_inside_its_last_character_loses_that_character_only(
    tiny: ByteBPE, text: str, cut: int
) -> None:
    data = (text + "🍕").encode()

    assert detokenize(tiny, byte_ids(tiny, data[: len(data) - 4 + cut])) == text


def test_no_half_character_is_ever_pushed(tiny: ByteBPE) -> None:
    detokenizer = Detokenizer(tiny)
    pieces = [detokenizer.push(token_id) for token_id in byte_ids(tiny, "é🍕中".encode())]

    assert pieces == ["", "é", "", "", "", "🍕", "", "", "中"]
    assert detokenizer.flush() == ""


def test_bytes_that_are_no_text_become_one_replacement_each_as_in_the_whole(tiny: ByteBPE) -> None:
    data = b"a\xffb\xe4\xb8c"

    assert detokenize(tiny, byte_ids(tiny, data)) == data.decode(errors="replace") == "a\ufffdb\ufffdc"


def test_control_tokens_are_not_shown_and_added_words_are(tiny: ByteBPE) -> None:
    ids = [tiny.special_tokens["<think>"], *tiny.encode("hm"), tiny.special_tokens["<|im_end|>"]]

    assert detokenize(tiny, ids) == "<think>hm"


def test_what_continues_half_a_character_completes_it(tiny: ByteBPE) -> None:
    before, after = byte_ids(tiny, "xé中".encode())[:-1], byte_ids(tiny, "中".encode())[-1]
    detokenizer = Detokenizer(tiny)

    detokenizer.prime(before)

    assert detokenizer.push(after) == "中"
