"""Grammars of calls: what an answer must be where one is demanded, and how calls must read if any come.

A part stands on the right of a rule, as those of `grammars` do. Marks that are control tokens are named by
their ids; all else is text, of which the model chooses the tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.grammars import literal
from gateway.tools.families import Shape
from gateway.tools.thoughts import ThoughtMarks

__all__ = ["Callee", "calls_part", "free_part", "thought_part"]

_MAX_CALLS = 16  # in one answer: small models repeat themselves
_BLANKS = r"/[ \n]{0,4}/"


class Callee(NamedTuple):
    """A tool's name, and the part of a grammar that its arguments must follow."""

    name: str
    arguments: str


def calls_part(shape: Shape, callees: Sequence[Callee], control: Mapping[str, int], *, is_one: bool) -> str:
    """One call, or several."""
    rules = _Rules(shape, callees, control)
    return rules.nested(f"{rules.of(shape.before)} call {rules.more(is_one=is_one)}")


def free_part(shape: Shape, callees: Sequence[Callee], control: Mapping[str, int], *, is_one: bool) -> str:
    """Any text; but where a call is opened in it, calls follow to the end."""
    rules = _Rules(shape, callees, control)
    more = rules.more(is_one=is_one)
    if not shape.mark:
        lines = [f"PLAIN: /[ \\n]*([^ \\n{re.escape(shape.plain)}](.|\\n)*)?/"]
        return rules.nested(f"PLAIN | {rules.of(shape.before)} call {more}", lines)
    if shape.mark in control:
        return rules.nested(f"TEXT? ({rules.of(shape.before)} call {more})?", [r"TEXT: /(.|\n)+/"])
    # the mark is text: it ends a stretch of text as soon as it is there, and the call goes on behind it
    lines = [r"TEXT: /(.|\n)*/", f"head[lazy]: /(.|\\n)*{_as_regex(shape.mark)}/"]
    if shape.before:
        return rules.nested(
            f"TEXT | head {rules.of(shape.before.removeprefix(shape.mark))} call {more}", lines
        )
    firsts = " | ".join([rules.call(place, without=shape.mark) for place in range(len(callees))])
    return rules.nested(f"TEXT | head ({firsts}) {more}", lines)


def thought_part(marks: ThoughtMarks, part: str, control: Mapping[str, int], *, is_inside: bool) -> str:
    """A part with reasoning before it: the rest of what the prompt has opened, or else if the model likes."""
    lines = [r"TEXT: /(.|\n)+/", f"BLANKS: {_BLANKS}"]
    if marks.closing in control:
        thought = f"TEXT? <[{control[marks.closing]}]>"
    else:
        lines.append(f"thought[lazy]: /(.|\\n)*{_as_regex(marks.closing)}/")
        thought = "thought"
    if not is_inside:
        thought = f"({_terms(marks.opening, control)} {thought} BLANKS)?"
        return f"{_nested(thought, lines)} ({part})"
    return f"{_nested(f'{thought} BLANKS', lines)} ({part})"


class _Rules:
    """The rules of the calls of some tools."""

    def __init__(self, shape: Shape, callees: Sequence[Callee], control: Mapping[str, int]) -> None:
        self._shape = shape
        self._callees = callees
        self._control = control

    def of(self, text: str) -> str:
        return _terms(text, self._control)

    def call(self, place: int, *, without: str = "") -> str:
        """One tool's call."""
        shape, name = self._shape, self._callees[place].name
        before = f"{shape.name_from}{name}{shape.name_to}".removeprefix(without)
        return f"{self.of(before)} a{place} {self.of(shape.end)}"

    def more(self, *, is_one: bool) -> str:
        """What follows the first call."""
        rest = f"({self.of(self._shape.between)} call){{0,{_MAX_CALLS - 1}}}"
        has_more = self._shape.has_many and not is_one
        return f"{rest if has_more else ''} {self.of(self._shape.after)}"

    def nested(self, start: str, lines: Sequence[str] = ()) -> str:
        places = range(len(self._callees))
        calls = "call: " + " | ".join([self.call(place) for place in places])
        arguments = [f"a{place}: {self._callees[place].arguments}" for place in places]
        return _nested(start, [*lines, calls, *arguments])


def _nested(start: str, lines: Sequence[str]) -> str:
    return "\n".join(["%lark {", f"start: {start}", *lines, "}"])


def _terms(text: str, control: Mapping[str, int]) -> str:
    """A text with control tokens in it, as a sequence of a rule."""
    marks = "|".join([re.escape(mark) for mark in control if mark in text])
    pieces = re.split(f"({marks})", text) if marks else [text]
    return " ".join([f"<[{control[each]}]>" if each in control else literal(each) for each in pieces if each])


def _as_regex(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
