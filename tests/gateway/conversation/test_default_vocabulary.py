"""The default model's own vocabulary, token for token against the reference library."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from engine.gguf import GGUFFile
from gateway.conversation.prompt import Prompts
from gateway.conversation.split_patterns import SMOLLM
from tests.gateway.conversation.vocabularies import PRE_TOKENIZERS, lacks_bytes, texts

ABSENT_BYTES = (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100))

words = st.lists(
    st.sampled_from(
        ["the ", "Über", " naïve", "don't", "2024", "  ", "\n\n", "日本", "x=1;", "🍕", " 3.14", "\t"]
    )
).map("".join)


@pytest.fixture(scope="module")
def reference(default_model_path: Path) -> Any:
    metadata = GGUFFile(default_model_path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[SMOLLM]
    return tokenizer


@given(text=texts | words)
def test_ids_are_the_references(smollm: Prompts, reference: Any, text: str) -> None:
    assume(not lacks_bytes(text, ABSENT_BYTES))

    assert smollm.tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids


@given(text=st.text() | st.text(alphabet="a\x04\x06\x13\U00040000\U000fffff "))
def test_no_text_raises(smollm: Prompts, text: str) -> None:
    """Also with the bytes that the vocabulary lacks; every id is one of its own."""
    assert all(0 <= token_id < smollm.vocab_size for token_id in smollm.tokenizer.encode(text))
