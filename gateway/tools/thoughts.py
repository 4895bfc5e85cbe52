"""Reasoning before an answer, set apart from it: `<think>…</think>` and its kin.

It is looked for at the beginning of an answer only, where templates and models put it. Blanks around it are
told of neither side. What follows is read by another reader, if there is one.
"""

from typing import Literal, NamedTuple

from gateway.tools.said import Reader, Said, find_mark, joined

__all__ = ["THOUGHT_MARKS", "ThoughtMarks", "ThoughtReader"]


class ThoughtMarks(NamedTuple):
    """What opens reasoning, and what closes it."""

    opening: str
    closing: str


THOUGHT_MARKS = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("<thinking>", "</thinking>"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)


class ThoughtReader:
    """Implements Reader."""

    def __init__(self, marks: ThoughtMarks, then: Reader | None, *, is_inside: bool) -> None:
        """`is_inside`: the prompt has opened the reasoning already."""
        self._marks = marks
        self._then = then
        self._state: Literal["start", "inside", "gap", "content"] = "inside" if is_inside else "start"
        self._has_thought = False
        self._may_repeat = True  # the mark that opened it
        self._held = ""

    @property
    def is_reasoning(self) -> bool:
        """See Reader."""
        return self._state == "inside"

    def push(self, text: str) -> list[Said]:
        """See Reader."""
        said: list[Said] = []
        text, self._held = self._held + text, ""
        while text:
            if self._state == "start":
                text = self._start(text)
            elif self._state == "inside":
                text = self._inside(text, said)
            elif self._state == "gap":
                text = self._gap(text)
            else:
                said += [Said("content", text)] if self._then is None else self._then.push(text)
                text = ""
        return joined(said)

    def finish(self, *, is_cut: bool) -> list[Said]:
        """See Reader."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return joined([Said("reasoning", held.rstrip())])
        then = [] if self._then is None else self._then.push(held) + self._then.finish(is_cut=is_cut)
        return joined(then if self._then is not None else [Said("content", held)])

    def _start(self, text: str) -> str:
        words, opening = text.lstrip(), self._marks.opening
        if words.startswith(opening):
            self._state = "inside"
            return words[len(opening) :]
        if opening.startswith(words):
            self._held = text
            return ""
        self._state = "content"
        return text

    def _gap(self, text: str) -> str:
        """Pass over blanks, and over the closing mark where a model repeats it."""
        text, closing = text.lstrip(), self._marks.closing
        if text.startswith(closing):
            return text[len(closing) :]
        if closing.startswith(text):
            self._held = text
            return ""
        self._state = "content"
        return text

    def _inside(self, text: str, said: list[Said]) -> str:
        if not self._has_thought:
            text = text.lstrip()
            # a model may write the mark that its prompt has written
            if self._may_repeat and text.startswith(self._marks.opening):
                text = text[len(self._marks.opening) :].lstrip()
                self._may_repeat = False
            elif self._may_repeat and self._marks.opening.startswith(text):
                self._held = text
                return ""
        place, mark = find_mark(text, (self._marks.closing,))
        length = len(text[:place].rstrip())
        if length:
            self._has_thought = True
            said.append(Said("reasoning", text[:length]))
        if mark is None:
            self._held = text[length:]
            return ""
        self._state = "gap"
        return text[place + len(mark) :]
