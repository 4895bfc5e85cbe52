"""Tokenizer and template out of a model folder: tokenizer.json, tokenizer_config.json, chat_template.jinja,
generation_config.json.

It owns what those files mean to us. Invariant: what stands in no file of the folder is not assumed, and a
tokenizer that it cannot reproduce exactly is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Pipeline

from gateway.conversation.byte_alphabet import to_bytes
from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.piece_tokenizer import PieceTokenizer, bytes_of_piece
from gateway.conversation.split_patterns import pattern_of_json
from gateway.conversation.text_model import TextModel, end_token_ids, template_or_default
from gateway.conversation.tokenizer import Tokenizer, TokenizerUnsupported
from gateway.conversation.vocabulary import Vocabulary

__all__ = ["read_folder", "tokenizer_of_json"]

# What a byte-level BPE of tokenizer.json must say, or leave out, for ids to be ranks.
_PLAIN_BPE: dict[str, tuple[Any, ...]] = {
    "type": ("BPE",),
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
}

# Nothing adds, drops or pads ids at the ends of a text.
_WHOLE: dict[str, None] = {"post_processor": None, "truncation": None, "padding": None}


def read_folder(folder: Path) -> TextModel:
    """Raises TokenizerUnsupported, ValueError for a broken file, OSError."""
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise TokenizerUnsupported(f"{folder} holds no tokenizer.json")
    data = _object(tokenizer_file)
    tokenizer = tokenizer_of_json(data)
    config = _object(folder / "tokenizer_config.json")
    template = template_or_default(
        _template(folder, config),
        bos_token=_spelling(config.get("bos_token")),
        eos_token=_spelling(config.get("eos_token")),
    )
    declared = [
        *_ids(_object(folder / "generation_config.json").get("eos_token_id")),
        *_ids(_object(folder / "config.json").get("eos_token_id")),
        tokenizer.special_tokens.get(_spelling(config.get("eos_token"))),
    ]
    special = tokenizer.special_tokens
    return TextModel(
        tokenizer, template, end_token_ids(special, declared), _bos_token_id(data, config, special)
    )


def tokenizer_of_json(data: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a tokenizer.json describes. Raises TokenizerUnsupported."""
    added = data.get("added_tokens") or []
    special = {token["content"]: token["id"] for token in added}
    control_ids = frozenset(token["id"] for token in added if token.get("special"))
    vocabulary = _byte_level(data, special, control_ids)
    if vocabulary is not None and vocabulary.suits_ranks():
        return ByteBPE(vocabulary)
    control = {spelling: token_id for spelling, token_id in special.items() if token_id in control_ids}
    parts = msgspec.json.encode([data.get("decoder"), data.get("pre_tokenizer")])
    try:
        pipeline = Pipeline.from_str(msgspec.json.encode({**data, **_WHOLE}).decode())
    except Exception as error:  # the library raises Exception itself
        raise TokenizerUnsupported(f"tokenizer.json cannot be read: {error}") from error
    spelled = to_bytes if b'"ByteLevel"' in parts else bytes_of_piece
    return PieceTokenizer(pipeline, control=control, spelled=spelled)


def _byte_level(
    data: Mapping[str, Any], special: dict[str, int], control_ids: frozenset[int]
) -> Vocabulary | None:
    model, pattern = data["model"], pattern_of_json(data.get("pre_tokenizer"))
    normalizer = (data.get("normalizer") or {}).get("type")
    is_plain = all(model.get(key) in allowed for key, allowed in _PLAIN_BPE.items())
    if pattern is None or normalizer not in (None, "NFC") or not is_plain:
        return None
    spelled = model["vocab"] | special
    tokens = [""] * (1 + max(spelled.values()))
    for token, token_id in spelled.items():
        tokens[token_id] = token
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    return Vocabulary(
        tokens=tokens,
        merges=[(left, right) for left, right in pairs],
        special=special,
        control_ids=control_ids,
        pattern=pattern,
        compose=normalizer == "NFC",
    )


def _bos_token_id(
    data: Mapping[str, Any], config: Mapping[str, Any], special: Mapping[str, int]
) -> int | None:
    """What the tokenizer puts before every text: as its own file's last stage says, unless the settings say
    otherwise.
    """
    if isinstance(config.get("add_bos_token"), bool):
        return special.get(_spelling(config.get("bos_token"))) if config["add_bos_token"] else None
    stage = data.get("post_processor") or {}
    for part in stage.get("processors") or [stage]:
        first: Mapping[str, Any] = (
            next(iter(part.get("single") or ()), {}) if part.get("type") == "TemplateProcessing" else {}
        )
        if "SpecialToken" in first:
            return special.get(first["SpecialToken"]["id"])
    return None


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    stated = config.get("chat_template")
    if isinstance(stated, list):
        return next((entry["template"] for entry in stated if entry["name"] == "default"), None)
    return stated


def _object(path: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one when there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no JSON object: {error}") from error


def _spelling(token: Any) -> str:
    """A token in tokenizer_config.json: a string, or an object around one."""
    return str(token["content"]) if isinstance(token, dict) else token or ""


def _ids(stated: Any) -> list[int]:
    return [stated] if isinstance(stated, int) else list(stated or ())
