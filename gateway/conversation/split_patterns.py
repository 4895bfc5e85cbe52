"""How a byte-level vocabulary cuts text into words before it merges, by the names under which models declare
it.

It owns the patterns, not the cutting. A pattern covers every character, so nothing is lost between two
matches, and where one word ends depends only on what follows. Sources: the models' own tokenizer files, where
these patterns stand as regular expressions.
"""

from typing import Any

__all__ = ["GPT2", "LLAMA3", "QWEN2", "SMOLLM", "pattern_of_json", "pattern_of_pre_type"]

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Every digit is cut out first, so that blanks before a digit end a stretch just as blanks before the end of
# the text do.
SMOLLM = r"'(?:[sdmt]|ll|ve|re)|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

_CONTRACTION_OR_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS_OR_BLANKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTION_OR_WORD}|\p{{N}}{{1,3}}|{_MARKS_OR_BLANKS}"
QWEN2 = rf"{_CONTRACTION_OR_WORD}|\p{{N}}|{_MARKS_OR_BLANKS}"

_BY_PRE_TYPE = {
    "default": GPT2,
    "gpt-2": GPT2,
    "gpt2": GPT2,
    "smollm": SMOLLM,
    "starcoder": SMOLLM,
    "refact": SMOLLM,
    "command-r": SMOLLM,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "qwen2": QWEN2,
}


def pattern_of_pre_type(pre_type: str) -> str | None:
    """The pattern behind a GGUF file's `tokenizer.ggml.pre`, or None for a name that we do not know."""
    return _BY_PRE_TYPE.get(pre_type)


def pattern_of_json(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The pattern behind the `pre_tokenizer` of a tokenizer.json, or None for a pipeline that no pattern of
    ours equals.
    """
    steps = [_bare(step) for step in _steps(pre_tokenizer)]
    words = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    if steps == [words]:
        return GPT2
    if steps == [digits, words]:
        return SMOLLM
    for pattern in (GPT2, LLAMA3, QWEN2):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        if steps == [split, words | {"use_regex": False}]:
            return pattern
    return None


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return list(pre_tokenizer["pretokenizers"])
    return [pre_tokenizer]


def _bare(step: dict[str, Any]) -> dict[str, Any]:
    # `trim_offsets` moves offsets, never ids; `use_regex` was added later and defaults to true.
    bare = {key: value for key, value in step.items() if key != "trim_offsets"}
    return {"use_regex": True} | bare if bare.get("type") == "ByteLevel" else bare
