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

__all__ = ["ANY_TEXT", "Callee", "calls_part", "channels_part", "free_part", "thought_part"]

ANY_TEXT = r"/(.|\n)*/"
_MAX_CALLS = 16  # in one answer: small models repeat themselves
_MAX_MESSAGES = 8  # on channels, before the last
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


def thought_part(
    marks: ThoughtMarks, part: str, tokens: Mapping[str, int], *, is_inside: bool, max_tokens: int | None
) -> str:
    """A part with reasoning before it: the rest of what the prompt has opened, or else if the model likes.

    At most `max_tokens` stand between the marks, which must be tokens then.
    """
    lines = [f"BLANKS: {_BLANKS}"]
    if marks.closing in tokens:
        # the mark is never spelled in letters, or whoever reads them would take it for the end
        lines.append(rf"TEXT: /(.|\n)+/ & ~/(.|\n)*{_as_regex(marks.closing)}(.|\n)*/")
        lines += _thought("TEXT", max_tokens)
        closed = f"{'' if max_tokens == 0 else 'thought?'} <[{tokens[marks.closing]}]>"
    else:
        lines.append(f"closed[lazy]: /(.|\\n)*{_as_regex(marks.closing)}/")
        closed = "closed"
    thought = f"{closed} BLANKS" if is_inside else f"({_terms(marks.opening, tokens)} {closed} BLANKS)?"
    return f"{_nested(thought, lines)} ({part})"


def channels_part(
    callees: Sequence[Callee],
    part: str | None,
    control: Mapping[str, int],
    *,
    must_call: bool,
    max_tokens: int | None,
) -> str:
    """An answer in messages: reasoning and what is said on the way, then one call, or the content, which is
    any if `part` is None. At most `max_tokens` are reasoning, in one message then.
    """

    def message(header: str, body: str) -> str:
        return f"{_terms(f'{header}<|message|>', control)} {body}"

    go_on = _terms("<|end|><|start|>assistant", control)
    lines = [
        r"TEXT: /(.|\n)+/",
        f"said: {message('<|channel|>commentary', 'TEXT?')} {go_on}",
        f"final: {message('<|channel|>final', 'TEXT?' if part is None else f'({part})')}",
    ]
    if max_tokens != 0:
        lines += _thought("TEXT", max_tokens)
        lines.append(f"reasoning: {message('<|channel|>analysis', 'thought?')} {go_on}")
    for place, (name, arguments) in enumerate(callees):
        to = f" to=functions.{name}"
        headers = (
            f"<|channel|>commentary{to} <|constrain|>json",
            f"{to}<|channel|>commentary <|constrain|>json",
        )
        lines.append(f"call{place}: {' | '.join([message(header, f'a{place}') for header in headers])}")
        lines.append(f"a{place}: {arguments}")
    # content that is held to a form is not preceded by other content
    steps = (["reasoning"] if max_tokens is None else []) + (["said"] if part is None else [])
    first = "reasoning?" if max_tokens else ""
    before = f"({' | '.join(steps)}){{0,{_MAX_MESSAGES}}}" if steps else ""
    last = [f"call{place}" for place in range(len(callees))] + ([] if must_call else ["final"])
    return _nested(f"{first} {before} ({' | '.join(last)})", lines)


def _thought(text: str, max_tokens: int | None) -> list[str]:
    """The rule of reasoning that is some text, unless it has no room."""
    if max_tokens == 0:
        return []
    return [f"thought: {text}" if max_tokens is None else f"thought[max_tokens={max_tokens}]: {text}"]


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
