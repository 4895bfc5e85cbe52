"""Calls as a list of Python's: `[look(q="x"), other()]`. A call is told when it is whole."""

import ast
import json
from collections.abc import Collection
from typing import Any

from gateway.tools.said import Malformed, Said

__all__ = ["PythonicBody"]

_BLANK = " \t\r\n"
_CONSTANTS = {"true": True, "false": False, "null": None}
_MAX_CHARACTERS = 100_000  # of one call: more is not parsed


class PythonicBody:
    """A list of calls, its first bracket included. Implements Body."""

    def __init__(self, names: Collection[str]) -> None:
        self.loose = ""
        self.is_done = False
        self._names = names
        self._call: list[str] = []  # letters of the call that is read
        self._is_open = False
        self._depth = 0  # of brackets inside the call
        self._quote = ""
        self._is_escaped = False
        self._is_after = False  # a whole call

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        if not self._call and self._between(letter):
            self.loose += letter
            return []
        if self.is_done:
            return []
        self._call.append(letter)
        self.loose += letter
        if self._depth == 0 and not self._quote:
            self._in_name(letter)
        else:
            self._in_arguments(letter)
            if self._depth == 0 and not self._quote:
                return self._close()
        return []

    def finish(self) -> list[Said]:
        """See Body."""
        return []

    def _between(self, letter: str) -> bool:
        """Whether a letter stands between calls. Raises Malformed for one that cannot."""
        if letter in _BLANK:
            return True
        if not self._is_open:
            if letter != "[":
                raise Malformed
            self._is_open = True
            return True
        if self._is_after:
            if letter == "]":
                self.is_done, self.loose = True, ""
                return False
            if letter != ",":
                raise Malformed
            self._is_after = False
            return True
        return False

    def _in_name(self, letter: str) -> None:
        if letter == "(":
            if "".join(self._call[:-1]).strip() not in self._names:
                self._take_back()
            self._depth = 1
        elif not (letter.isalnum() or letter in "_-"):
            self._take_back()

    def _take_back(self) -> None:
        self.loose = self.loose[:-1]
        raise Malformed

    def _in_arguments(self, letter: str) -> None:
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif letter == "\\":
                self._is_escaped = True
            elif letter == self._quote:
                self._quote = ""
        elif letter in "\"'":
            self._quote = letter
        elif letter in "([{":
            self._depth += 1
        elif letter in ")]}":
            self._depth -= 1

    def _close(self) -> list[Said]:
        name, _, rest = "".join(self._call).partition("(")
        arguments = _as_json(rest[:-1])
        if arguments is None:
            self._take_back()
        self._call.clear()
        self.loose, self._is_after = "", True
        return [Said("call", name.strip()), Said("arguments", arguments or "{}")]


def _as_json(arguments: str) -> str | None:
    """Named arguments as a JSON object; None for what is none."""
    if len(arguments) > _MAX_CHARACTERS:
        return None
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            return None
        values = {each.arg: _value(each.value) for each in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in _CONSTANTS:
            raise ValueError(node.id)
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is no string")
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)
