"""Pieces of a text."""

from pathlib import Path

import pytest

from benchmarks.prompts import TextPrompts


def test_pieces_follow_each_other_and_begin_again_at_the_end(
    default_model_path: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven")
    whole = list(TextPrompts(default_model_path, text).take(7))
    prompts = TextPrompts(default_model_path, text)

    pieces = [list(prompts.take(size)) for size in (5, 5, 2, 9)]

    assert [token for piece in pieces for token in piece] == whole * 3


def test_a_text_without_a_word_is_refused(default_model_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "empty.txt"
    text.write_text("")

    with pytest.raises(ValueError, match=r"empty\.txt holds no text"):
        TextPrompts(default_model_path, text)
