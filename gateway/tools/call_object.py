"""A call as a JSON object with a name and arguments, read letter by letter.

The name is told when it is known to be a tool's; arguments that are an object are told as they come, letter
by letter what the model wrote. Arguments that are JSON inside a string are told when the string is whole.
"""

import json
from collections.abc import Collection
from typing import Literal

from gateway.tools.said import Malformed, Said

__all__ = ["CallObject", "ValueEnd"]

_ARGUMENTS = ("arguments", "parameters")
_KNOWN = ("name", "type", "id", *_ARGUMENTS)
_BLANK = " \t\r\n"


class ValueEnd:
    """Finds where a JSON value ends. It takes nesting and strings into account, and nothing else."""

    def __init__(self, first: str) -> None:
        """Begins with the value's first letter."""
        self.kind: Literal["nested", "string", "plain"] = (
            "nested" if first in "{[" else "string" if first == '"' else "plain"
        )
        self._depth = int(self.kind == "nested")
        self._in_string = self.kind == "string"
        self._is_escaped = False

    def takes(self, letter: str) -> tuple[bool, bool]:
        """Whether a letter still belongs to the value, and whether the value is whole with it."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif letter == "\\":
                self._is_escaped = True
            elif letter == '"':
                self._in_string = False
                return True, self._depth == 0
            return True, False
        if self.kind == "plain":
            belongs = letter not in ",}" and letter not in _BLANK
            return belongs, False
        if letter == '"':
            self._in_string = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1
        return True, self._depth == 0


class CallObject:
    """One object. Fed until it is done."""

    def __init__(self, names: Collection[str]) -> None:
        self.is_done = False
        self.has_begun = False  # the call is told
        self._names = names
        self._state: Literal["start", "key", "colon", "value", "in value", "after"] = "start"
        self._is_first_key = True
        self._key: str | None = None  # None while it is read
        self._letters: list[str] = []  # of the key or value that is read, as far as they are not told
        self._end = ValueEnd('"')
        self._has_arguments = False
        self._is_arguments = False  # whether the value that is read is what the call is told with
        self._early = ""  # arguments that came before the name

    def push(self, letter: str) -> list[Said]:
        """Take a letter. Raises Malformed."""
        if self._state == "in value":
            return self._in_value(letter)
        if letter in _BLANK:
            return []
        if self._state == "start" and letter == "{":
            self._state = "key"
        elif self._state == "key" and letter == '"':
            self._begin(letter, is_key=True)
        elif self._state == "key" and letter == "}" and self._is_first_key:
            raise Malformed
        elif self._state == "colon" and letter == ":":
            self._state = "value"
        elif self._state == "value" and letter not in ",}]:":
            return self._begin(letter, is_key=False)
        elif self._state == "after" and letter == ",":
            self._state = "key"
        elif self._state == "after" and letter == "}":
            return self._close()
        else:
            raise Malformed
        return []

    def finish(self) -> list[Said]:
        """At the end of the text: what is there of arguments."""
        is_open = self.has_begun and self._state == "in value" and self._is_arguments
        return [Said("arguments", self._taken())] if is_open else []

    def _taken(self) -> str:
        text = "".join(self._letters)
        self._letters.clear()
        return text

    def _begin(self, letter: str, *, is_key: bool) -> list[Said]:
        self._end = ValueEnd(letter)
        self._state, self._letters = "in value", [letter]
        self._is_arguments = not is_key and self._key in _ARGUMENTS and not self._has_arguments
        if is_key:
            self._key = None
        self._has_arguments |= self._is_arguments
        return self._stream()

    @property
    def _is_streamed(self) -> bool:
        return self.has_begun and self._is_arguments and self._end.kind == "nested"

    def _stream(self) -> list[Said]:
        return [Said("arguments", self._taken())] if self._is_streamed else []

    def _in_value(self, letter: str) -> list[Said]:
        belongs, is_whole = self._end.takes(letter)
        if belongs:
            self._letters.append(letter)
        if belongs and not is_whole:
            return self._stream()
        if self._key is None:
            self._end_key()
            return []
        said = self._stream() if self._is_streamed else self._end_value(self._taken())
        self._state = "after"
        return said if belongs else said + self.push(letter)

    def _end_key(self) -> None:
        key = _loaded(self._taken())
        if not isinstance(key, str) or (self._is_first_key and key not in _KNOWN):
            raise Malformed  # seen early, so that other objects need not wait for their end
        self._key, self._is_first_key = key, False
        self._state = "colon"

    def _end_value(self, text: str) -> list[Said]:
        if self._is_arguments:
            arguments = _as_arguments(text, self._end.kind)
            if self.has_begun:
                return [Said("arguments", arguments)]
            self._early = arguments
        elif self._key == "name" and not self.has_begun:
            name = _loaded(text)
            if not isinstance(name, str) or name not in self._names:
                raise Malformed
            self.has_begun = True
            return [Said("call", name), *([Said("arguments", self._early)] if self._early else [])]
        return []

    def _close(self) -> list[Said]:
        if not self.has_begun:
            raise Malformed
        self.is_done = True
        return [] if self._has_arguments else [Said("arguments", "{}")]


def _as_arguments(text: str, kind: str) -> str:
    if kind == "string":
        inner = _loaded(text)
        return inner if isinstance(inner, str) else text
    return "{}" if text == "null" else text


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
