"""What model files say about text is read right, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Pipeline

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.gguf_text import text_of_metadata
from gateway.conversation.model_text import load_model_text
from gateway.conversation.piece_tokenizer import PieceTokenizer
from gateway.conversation.split_patterns import GPT2, LLAMA3, QWEN2, SMOLLM
from gateway.conversation.template import CHATML
from gateway.conversation.tokenizer import TokenizerUnsupported
from tests.gateway.conversation.vocabularies import SPECIAL, reference, trained_vocabulary

TEXT = "hello  world 123, they're\n\n1. é🍕 <|im_end|>"
VOCABULARY = trained_vocabulary(SMOLLM)


def metadata(**changes: Any) -> dict[str, Any]:
    kinds = [3] * 4 + [4] * 2 + [1] * (len(VOCABULARY.tokens) - 6)
    stated = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": list(VOCABULARY.tokens),
        "token_type": kinds,
        "merges": [" ".join(pair) for pair in VOCABULARY.merges],
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (stated | changes).items() if value is not None}


def tokenizer_json(pattern: str) -> dict[str, Any]:
    vocabulary = trained_vocabulary(pattern)
    data: dict[str, Any] = json.loads(reference(vocabulary).to_str())
    data["added_tokens"] = [
        {
            "id": token_id,
            "content": spelling,
            "special": token_id in vocabulary.control_ids,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for spelling, token_id in vocabulary.special.items()
    ]
    return data


def folder(path: Path, tokenizer: dict[str, Any], **files: Any) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_gguf_metadata_becomes_tokenizer_template_and_ends() -> None:
    model = text_of_metadata(metadata() | {"tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}x"})

    assert isinstance(model.tokenizer, ByteBPE)
    assert model.tokenizer.encode(TEXT) == ByteBPE(VOCABULARY).encode(TEXT)
    assert dict(model.tokenizer.special_tokens) == {spelling: i for i, spelling in enumerate(SPECIAL)}
    assert model.end_token_ids == (0, 2)
    assert model.template.texts == ("{{ bos_token }}{{ eos_token }}x", "", "<|im_end|>")


def test_a_model_without_template_gets_chatml() -> None:
    assert text_of_metadata(metadata()).template.source == CHATML


def test_end_tokens_that_a_file_declares_are_kept() -> None:
    assert text_of_metadata(metadata(eot_token_id=7, eom_token_id=8)).end_token_ids == (0, 2, 7, 8)


def test_unused_tokens_are_never_produced() -> None:
    stated = metadata()
    stated["tokenizer.ggml.tokens"].append("()")
    stated["tokenizer.ggml.token_type"].append(5)

    assert len(text_of_metadata(stated).tokenizer.encode("()")) == 2


def test_merges_that_do_not_fit_the_vocabulary_are_refused() -> None:
    with pytest.raises(TokenizerUnsupported, match="do not fit"):
        text_of_metadata(metadata(merges=["q zz"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"pre": "odd"}, "odd"), ({"model": "t5"}, "t5"), ({"tokens": None}, "no tokenizer")],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerUnsupported, match=message):
        text_of_metadata(metadata(**changes))


def test_merges_out_of_order_run_on_another_library() -> None:
    merges = metadata()["tokenizer.ggml.merges"]
    model = text_of_metadata(metadata(merges=[*merges[1:], merges[0]]))

    assert isinstance(model.tokenizer, PieceTokenizer)


def test_a_sentencepiece_vocabulary_is_read() -> None:
    stated = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "▁a", "<tool>"],
        "token_type": [2, 3, 3, 6, 1, 1, 1, 4],
        "scores": [0.0, 0, 0, 0, -3, -2, -1, 0],
    }
    model = text_of_metadata({f"tokenizer.ggml.{key}": value for key, value in stated.items()})

    assert model.tokenizer.encode("a\na<tool>") == [6, 3, 5, 7]
    assert model.end_token_ids == (2,)


@pytest.mark.parametrize("pattern", [GPT2, SMOLLM, LLAMA3, QWEN2], ids=["gpt2", "smollm", "llama3", "qwen2"])
def test_a_folder_s_byte_level_tokenizer_runs_on_tiktoken(tmp_path: Path, pattern: str) -> None:
    model = load_model_text(folder(tmp_path, tokenizer_json(pattern)))

    assert isinstance(model.tokenizer, ByteBPE)
    assert model.tokenizer.encode(TEXT) == reference(trained_vocabulary(pattern)).encode(TEXT).ids


@pytest.mark.parametrize(
    "change",
    [
        {
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        },
        {"normalizer": {"type": "Lowercase"}},
    ],
)
def test_any_other_pipeline_runs_as_it_stands(tmp_path: Path, change: dict[str, Any]) -> None:
    data = tokenizer_json(GPT2) | change
    tokenizer = load_model_text(folder(tmp_path, data)).tokenizer

    assert isinstance(tokenizer, PieceTokenizer)
    text = TEXT.removesuffix("<|im_end|>")
    assert tokenizer.encode(text) == Pipeline.from_str(json.dumps(data)).encode(text).ids
    assert b"<|im_end|>" in b"".join(map(tokenizer.decode_bytes, tokenizer.encode(TEXT)))


def test_added_runs_of_blanks_are_found_in_text(tmp_path: Path) -> None:
    data = tokenizer_json(GPT2)
    blanks = len(trained_vocabulary(GPT2).tokens)
    data["added_tokens"].append(data["added_tokens"][-1] | {"id": blanks, "content": "      "})
    tokenizer = load_model_text(folder(tmp_path, data)).tokenizer

    assert blanks in tokenizer.encode("a      b")
    assert tokenizer.decode_bytes(blanks) == b"      "


def test_a_unigram_model_never_finds_its_control_tokens(tmp_path: Path) -> None:
    pieces = [["<unk>", 0.0], ["</s>", 0.0], *([letter, -1.0] for letter in "</s>ab")]
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data = {"version": "1.0", "added_tokens": [token | {"id": 1, "content": "</s>"}], "pre_tokenizer": None}
    data["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces}
    tokenizer = load_model_text(folder(tmp_path, data)).tokenizer

    assert tokenizer.encode("a/b?") == [6, 3, 7, 0]
    assert 1 not in tokenizer.encode("a</s>b")


def test_a_folder_states_template_and_ends_in_several_files(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        tokenizer_json(SMOLLM),
        tokenizer_config={
            "bos_token": {"content": "<|im_start|>"},
            "eos_token": "<|im_end|>",
            "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}],
        },
        generation_config={"eos_token_id": [2, 9]},
        config={"eos_token_id": 8},
    )

    model = load_model_text(path)
    assert model.template.texts == ("yes", "<|im_start|>", "<|im_end|>")
    assert model.end_token_ids == (0, 2, 8, 9)

    (path / "chat_template.jinja").write_text("alone")
    assert load_model_text(path).template.source == "alone"


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnsupported, match=r"no tokenizer\.json"):
        load_model_text(tmp_path)


def test_a_broken_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no JSON object"):
        load_model_text(tmp_path)

    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Odd"}}')
    with pytest.raises(TokenizerUnsupported, match="cannot be read"):
        load_model_text(tmp_path)


@pytest.mark.parametrize(
    ("changes", "bos"),
    [
        ({}, None),
        ({"bos_token_id": 1}, None),
        ({"bos_token_id": 1, "add_bos_token": True}, 1),
        ({"bos_token_id": 1, "add_bos_token": False}, None),
        ({"add_bos_token": True}, None),
    ],
)
def test_a_gguf_file_says_whether_a_text_begins_with_a_token(
    changes: dict[str, Any], bos: int | None
) -> None:
    assert text_of_metadata(metadata(**changes)).bos_token_id == bos


BEGINS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
}
ENDS = BEGINS | {"single": list(reversed(BEGINS["single"]))}
AFTER = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, BEGINS]}


@pytest.mark.parametrize(
    ("stage", "config", "begins"),
    [
        (None, {}, False),
        (BEGINS, {}, True),
        (AFTER, {}, True),
        (ENDS, {}, False),
        (BEGINS, {"add_bos_token": False}, False),
        (None, {"add_bos_token": True, "bos_token": "<|im_start|>"}, True),
        (None, {"bos_token": "<|im_start|>"}, False),
    ],
)
def test_a_folder_says_whether_a_text_begins_with_a_token(
    tmp_path: Path, stage: Any, config: dict[str, Any], begins: bool
) -> None:
    data = tokenizer_json(SMOLLM) | {"post_processor": stage}

    text = load_model_text(folder(tmp_path, data, tokenizer_config=config))

    expected = text.tokenizer.special_tokens["<|im_start|>"] if begins else None
    assert text.bos_token_id == expected
