"""gpt-oss: an answer in messages on channels, of which one is shown, one is reasoning and one calls tools.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.look <|constrain|>json<|message|>{…}<|call|>

The marks are control tokens, so they come by their spellings from whoever feeds the reader.
"""

import re
from collections.abc import Collection
from typing import Literal

from gateway.tools.said import Said, Spell, find_mark, joined

__all__ = ["CHANNEL_MARKS", "ChannelReader"]

_MESSAGE = "<|message|>"
_CHANNEL = "<|channel|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", _CHANNEL)
CHANNEL_MARKS = (_MESSAGE, *_ENDS, "<|constrain|>")
_RECIPIENT = re.compile(r"to=functions\.([\w-]+)")


class ChannelReader:
    """Implements Reader. An answer begins behind `<|start|>assistant`."""

    def __init__(self, names: Collection[str], spell: Spell) -> None:
        self._names = names
        self._message, self._channel = spell(_MESSAGE), spell(_CHANNEL)
        self._ends = [spell(mark) for mark in _ENDS]
        self._openings = (self._channel, self._message, "to=", spell("<|constrain|>"))
        self._state: Literal["start", "header", "body"] = "start"
        self._header = ""
        self._held = ""
        self._kind: Literal["content", "reasoning", "arguments"] = "content"
        self._is_empty = True  # whether the message has no text so far

    @property
    def is_reasoning(self) -> bool:
        """See Reader."""
        in_header = self._state == "header" and "analysis" in self._header
        return in_header or (self._state == "body" and self._kind == "reasoning")

    def push(self, text: str) -> list[Said]:
        """See Reader."""
        said: list[Said] = []
        text, self._held = self._held + text, ""
        while text:
            if self._state == "start":
                text = self._start(text)
            elif self._state == "header":
                text = self._read_header(text, said)
            else:
                text = self._read_body(text, said)
        return joined(said)

    def finish(self, *, is_cut: bool) -> list[Said]:
        """See Reader."""
        said = [Said(self._kind, self._held)] if self._state != "header" else []
        if not is_cut:
            self._close(said)
        self._held = ""
        return joined(said)

    def _start(self, text: str) -> str:
        """An answer without marks is content."""
        words = text.lstrip()
        if words.startswith(self._openings):
            self._state = "header"
            return text
        if any(opening.startswith(words) for opening in self._openings):
            self._held = text
            return ""
        self._state = "body"
        return text

    def _read_header(self, text: str, said: list[Said]) -> str:
        place, mark = find_mark(text, (self._message,))
        self._header += text[:place]
        if mark is None:
            self._held = text[place:]
            return ""
        self._begin(said)
        return text[place + len(mark) :]

    def _begin(self, said: list[Said]) -> None:
        header, self._header = self._header, ""
        self._state, self._is_empty = "body", True
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] in self._names:
            self._kind = "arguments"
            said.append(Said("call", recipient[1]))
        else:
            channel = header.partition(_CHANNEL)[2].lstrip()
            self._kind = "reasoning" if channel.startswith("analysis") else "content"

    def _read_body(self, text: str, said: list[Said]) -> str:
        place, mark = find_mark(text, self._ends)
        if place:
            self._is_empty = False
            said.append(Said(self._kind, text[:place]))
        if mark is None:
            self._held = text[place:]
            return ""
        self._close(said)
        self._state, self._header = "header", mark if mark == self._channel else ""
        return text[place + len(mark) :]

    def _close(self, said: list[Said]) -> None:
        if self._state == "body" and self._kind == "arguments" and self._is_empty and not self._held:
            said.append(Said("arguments", "{}"))
        self._kind = "content"
