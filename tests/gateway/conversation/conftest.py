"""Tokenizers that are made once: small ones of our own, and the default model's."""

from pathlib import Path

import pytest

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.prompt import Prompts, load_prompts
from gateway.conversation.split_patterns import SMOLLM
from tests.gateway.conversation.vocabularies import ABSENT_BYTES, trained_vocabulary


@pytest.fixture(scope="session")
def tiny() -> ByteBPE:
    """A small tokenizer that knows every byte."""
    return ByteBPE(trained_vocabulary(SMOLLM))


@pytest.fixture(scope="session")
def gapped() -> ByteBPE:
    """A small tokenizer that lacks some bytes."""
    return ByteBPE(trained_vocabulary(SMOLLM, absent=ABSENT_BYTES))


@pytest.fixture(scope="session")
def smollm(default_model_path: Path) -> Prompts:
    """The default model's prompts; tests that record use a tenant of their own."""
    return load_prompts(default_model_path)
