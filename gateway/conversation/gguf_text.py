"""Tokenizer and template out of a GGUF file's metadata.

It owns the meaning of the `tokenizer.*` keys. Invariant: a tokenizer that it cannot reproduce exactly is
refused by name; it never guesses.
"""

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from engine.gguf import GGUFFile
from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.piece_tokenizer import byte_level_pipeline, sentencepiece_pipeline
from gateway.conversation.split_patterns import QWEN2, pattern_of_pre_type
from gateway.conversation.text_model import TextModel, end_token_ids, template_or_default
from gateway.conversation.tokenizer import Tokenizer, TokenizerUnsupported
from gateway.conversation.vocabulary import Vocabulary

__all__ = ["read_gguf", "text_of_metadata"]

_KEYS = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class _Kind(IntEnum):
    """What a token is, as the file's `token_type` says."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_gguf(path: Path) -> TextModel:
    """Raises GGUFError for a broken file and TokenizerUnsupported for a tokenizer that is not served."""
    return text_of_metadata(GGUFFile(path).metadata)


def text_of_metadata(metadata: Mapping[str, Any]) -> TextModel:
    """Raises TokenizerUnsupported."""
    tokens = metadata.get(_KEYS + "tokens")
    if not tokens:
        raise TokenizerUnsupported("the GGUF file holds no tokenizer")
    tokenizer = _tokenizer(metadata)
    template = template_or_default(
        metadata.get("tokenizer.chat_template"),
        bos_token=_spelling(metadata, "bos_token_id"),
        eos_token=_spelling(metadata, "eos_token_id"),
    )
    declared = [metadata.get(_KEYS + key) for key in _END_KEYS]
    return TextModel(
        tokenizer, template, end_token_ids(tokenizer.special_tokens, declared), _bos_token_id(metadata)
    )


def _tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    model = metadata.get(_KEYS + "model")
    if model == "gpt2":
        vocabulary = _vocabulary(metadata)
        return ByteBPE(vocabulary) if vocabulary.suits_ranks() else byte_level_pipeline(vocabulary)
    if model == "llama":
        special, control_ids = _special(metadata)
        control = {spelling: token_id for spelling, token_id in special.items() if token_id in control_ids}
        return sentencepiece_pipeline(
            metadata[_KEYS + "tokens"],
            metadata[_KEYS + "scores"],
            control=control,
            added=special.keys() - control.keys(),
            add_space_prefix=bool(metadata.get(_KEYS + "add_space_prefix", True)),
        )
    raise TokenizerUnsupported(
        f"tokenizer model {model!r} of the GGUF file is not served; gpt2 and llama are"
    )


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    pre_type = metadata.get(_KEYS + "pre", "default")
    pattern = pattern_of_pre_type(pre_type)
    if pattern is None:
        raise TokenizerUnsupported(f"pre-tokenizer {pre_type!r} of the GGUF file is not known here")
    special, control_ids = _special(metadata)
    kinds = _kinds(metadata)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(_KEYS + "merges", ())]
    tokens = metadata[_KEYS + "tokens"]
    return Vocabulary(
        tokens=["" if kind == _Kind.UNUSED else token for token, kind in zip(tokens, kinds, strict=True)],
        merges=[(left, right) for left, right in merges],
        special=special,
        control_ids=control_ids,
        pattern=pattern,
        compose=pattern == QWEN2,
    )


def _special(metadata: Mapping[str, Any]) -> tuple[dict[str, int], frozenset[int]]:
    tokens, kinds = metadata[_KEYS + "tokens"], _kinds(metadata)
    hidden = {_Kind.CONTROL, _Kind.UNKNOWN}
    control_ids = frozenset(i for i, kind in enumerate(kinds) if kind in hidden)
    added = [i for i, kind in enumerate(kinds) if kind == _Kind.USER_DEFINED]
    return {tokens[i]: i for i in (*added, *sorted(control_ids))}, control_ids


def _kinds(metadata: Mapping[str, Any]) -> list[int]:
    return list(metadata.get(_KEYS + "token_type") or [_Kind.NORMAL] * len(metadata[_KEYS + "tokens"]))


def _bos_token_id(metadata: Mapping[str, Any]) -> int | None:
    # a file that does not say is read as llama.cpp reads it: SentencePiece vocabularies add one
    is_added = metadata.get(_KEYS + "add_bos_token", metadata.get(_KEYS + "model") == "llama")
    token_id = metadata.get(_KEYS + "bos_token_id")
    return token_id if is_added and token_id is not None else None


def _spelling(metadata: Mapping[str, Any], key: str) -> str:
    token_id = metadata.get(_KEYS + key)
    tokens = metadata[_KEYS + "tokens"]
    return str(tokens[token_id]) if token_id is not None and 0 <= token_id < len(tokens) else ""
