"""Ids equal the reference tokenizer's on any text, and no text is too odd or too long."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.prompt import Prompts
from gateway.conversation.split_patterns import GPT2, LLAMA3, QWEN2, SMOLLM
from tests.gateway.conversation.vocabularies import (
    ABSENT_BYTES,
    SPECIAL,
    lacks_bytes,
    reference,
    texts,
    trained_vocabulary,
)

VOCABULARIES = {pattern: trained_vocabulary(pattern) for pattern in (GPT2, SMOLLM, LLAMA3, QWEN2)}
TOKENIZERS = {pattern: ByteBPE(vocabulary) for pattern, vocabulary in VOCABULARIES.items()}
REFERENCES = {pattern: reference(vocabulary) for pattern, vocabulary in VOCABULARIES.items()}
GAPPED_REFERENCE = reference(trained_vocabulary(SMOLLM, absent=ABSENT_BYTES))


def decoded(tokenizer: ByteBPE, ids: list[int]) -> bytes:
    return b"".join(tokenizer.decode_bytes(token_id) for token_id in ids)


@pytest.mark.parametrize("pattern", VOCABULARIES, ids=["gpt2", "smollm", "llama3", "qwen2"])
@given(text=texts)
@settings(deadline=None, max_examples=300)
def test_ids_equal_the_reference_tokenizer_s(pattern: str, text: str) -> None:
    assert TOKENIZERS[pattern].encode(text) == REFERENCES[pattern].encode(text).ids


@given(text=texts)
@settings(deadline=None)
def test_text_without_missing_bytes_is_not_touched_by_fillers(gapped: ByteBPE, text: str) -> None:
    assume(not lacks_bytes(text, ABSENT_BYTES))

    assert gapped.encode(text) == GAPPED_REFERENCE.encode(text).ids


@given(text=texts)
@settings(deadline=None)
def test_decoding_gives_the_text_back(tiny: ByteBPE, text: str) -> None:
    assert decoded(tiny, tiny.encode(text)) == text.encode()


@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from("\x04\x06\U00040000a ")))
@settings(deadline=None)
def test_missing_bytes_are_left_out_and_nothing_raises(gapped: ByteBPE, text: str) -> None:
    known = bytes(byte for byte in text.encode() if byte not in ABSENT_BYTES)

    ids = gapped.encode(text)
    assert decoded(gapped, ids) == known
    assert max(ids, default=0) < gapped.vocab_size


@given(parts=st.lists(st.sampled_from([*SPECIAL, "<|im_", "end|>", " x"])))
@settings(deadline=None)
def test_no_text_becomes_a_special_token(tiny: ByteBPE, parts: list[str]) -> None:
    ids = tiny.encode("".join(parts))

    assert set(ids).isdisjoint(tiny.special_tokens.values())


def test_lone_surrogates_are_refused(tiny: ByteBPE) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        tiny.encode("a\ud800b")


@pytest.mark.parametrize("text", [" ", "\n", "a", "!", "中", " \n", "<|im_end|>"])
def test_a_million_characters_of_anything_are_encoded(tiny: ByteBPE, text: str) -> None:
    long = text * (1_000_000 // len(text))

    assert decoded(tiny, tiny.encode(long)) == long.encode()


def test_canonical_composition_is_applied_where_the_model_asks_for_it() -> None:
    composing = ByteBPE(replace(VOCABULARIES[QWEN2], compose=True))

    assert composing.encode("cafe\u0301") == TOKENIZERS[QWEN2].encode("café")


def test_control_tokens_have_no_bytes_and_added_words_have(tiny: ByteBPE) -> None:
    assert tiny.decode_bytes(tiny.special_tokens["<|im_end|>"]) == b""
    assert tiny.decode_bytes(tiny.special_tokens["<think>"]) == b"<think>"
    assert tiny.decode_bytes(tiny.vocab_size) == b""
    assert tiny.decode_bytes(-1) == b""


@given(text=texts)
@settings(deadline=None, max_examples=300)
def test_the_default_model_s_ids_decode_to_the_text(smollm: Prompts, text: str) -> None:
    ids = smollm.tokenizer.encode(text)
    back = b"".join(smollm.tokenizer.decode_bytes(token_id) for token_id in ids)

    absent = bytes.fromhex("04061314161dc0c1f1f2f5f6f7f8f9fafbfcfdfeff")
    assert back == bytes(byte for byte in text.encode() if byte not in absent)


def test_the_default_model_cuts_digits_out_first(smollm: Prompts) -> None:
    assert smollm.tokenizer.encode("\n\n1.") == [1116, 33, 30]
    assert smollm.tokenizer.encode("a  2024") == [81, 256, 34, 32, 34, 36]
