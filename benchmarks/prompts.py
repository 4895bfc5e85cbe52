"""Prompts of given lengths, cut from a long text, so that a real model has something to go on from."""

from array import array
from collections.abc import Sequence
from pathlib import Path

from gateway.conversation.prompt import load_prompts

__all__ = ["TextPrompts"]


class TextPrompts:
    """Pieces of one text, each beginning where the one before it ended; the text begins again at its end."""

    def __init__(self, model: Path, text: Path) -> None:
        """Raises OSError when either cannot be read, and ValueError for a text without a word."""
        self._ids: Sequence[int] = load_prompts(model).tokenizer.encode(text.read_text(encoding="utf-8"))
        if not self._ids:
            raise ValueError(f"{text} holds no text to cut prompts from")
        self._place = 0

    def take(self, num_tokens: int) -> "array[int]":
        """The next piece."""
        piece = array("i")
        while len(piece) < num_tokens:
            end = min(self._place + num_tokens - len(piece), len(self._ids))
            piece.extend(self._ids[self._place : end])
            self._place = end % len(self._ids)
        return piece
