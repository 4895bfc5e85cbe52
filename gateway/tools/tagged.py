"""Calls in tags, as the later models of Qwen write them: each argument's text between tags of its own.

    <function=look>
    <parameter=q>
    any text
    </parameter>
    </function>

An argument whose schema allows a string is its text as it stands, and another one is read as JSON. Each is
told when it is whole.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.tools.said import Malformed, Said

__all__ = ["TaggedBody"]

_BLANK = " \t\r\n"
_NAME = re.compile(r"<(function|parameter)=([^<>\n]{1,200})>")
_VALUE_END, _CALL_END = "</parameter>", "</function>"
_HEADS = ("<function=", "<parameter=", _CALL_END)
_MAX_NAME = 220  # characters of a tag


class TaggedBody:
    """One call. Implements Body."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """`tools` are the schemas of their parameters, by their names."""
        self.is_done = False
        self._tools = tools
        self._properties: Mapping[str, Any] | None = None  # of the call, once its name is told
        self._letters: list[str] = []  # read since something was told
        self._tag = ""
        self._parameter: str | None = None  # whose text is read
        self._text_from = 0  # where it begins
        self._is_first = True

    @property
    def loose(self) -> str:
        """See Body."""
        return "".join(self._letters)

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        self._letters.append(letter)
        if self._parameter is not None:
            return self._in_value(letter)
        if not self._tag and letter in _BLANK:
            return []
        self._tag += letter
        if not any(head.startswith(self._tag) or self._tag.startswith(head) for head in _HEADS):
            self._take_back()
        if letter == ">":
            tag, self._tag = self._tag, ""
            return self._end_tag(tag)
        if len(self._tag) > _MAX_NAME:
            self._take_back()
        return []

    def finish(self) -> list[Said]:
        """See Body."""
        return []

    def _take_back(self) -> None:
        self._letters.pop()
        raise Malformed

    def _end_tag(self, tag: str) -> list[Said]:
        found = _NAME.fullmatch(tag)
        if self._properties is None:
            if found is None or found[1] != "function" or found[2] not in self._tools:
                self._take_back()
            else:
                properties = self._tools[found[2]].get("properties")
                self._properties = properties if isinstance(properties, Mapping) else {}
                self._letters.clear()
                return [Said("call", found[2]), Said("arguments", "{")]
        elif tag == _CALL_END:
            self.is_done = True
            self._letters.clear()
            return [Said("arguments", "}")]
        elif found is not None and found[1] == "parameter":
            self._parameter, self._text_from = found[2], len(self._letters)
        else:
            self._take_back()
        return []

    def _in_value(self, letter: str) -> list[Said]:
        if letter != ">" or "".join(self._letters[-len(_VALUE_END) :]) != _VALUE_END:
            return []
        text = (
            "".join(self._letters[self._text_from : -len(_VALUE_END)]).removeprefix("\n").removesuffix("\n")
        )
        self._letters.clear()
        name, self._parameter = self._parameter or "", None
        value = _value(text, (self._properties or {}).get(name))
        before, self._is_first = "" if self._is_first else ", ", False
        return [Said("arguments", f"{before}{json.dumps(name, ensure_ascii=False)}: {value}")]


def _value(text: str, schema: object) -> str:
    """An argument's text as JSON."""
    types = [each for each in _types(schema) if isinstance(each, str)]
    if "null" in types and text == "null":
        return text
    if types and "string" not in types:
        for each in (text.strip(), text.strip().lower()):  # a model may write True
            if _is_json(each):
                return each
    return json.dumps(text, ensure_ascii=False)


def _types(schema: object) -> Iterator[object]:
    """The types that a schema names, itself or in one of several."""
    parts = [schema]
    if isinstance(schema, Mapping):
        parts += [part for word in ("anyOf", "oneOf") for part in _listed(schema.get(word))]
    for part in parts:
        if isinstance(part, Mapping) and (named := part.get("type")) is not None:
            yield from named if isinstance(named, list) else [named]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
