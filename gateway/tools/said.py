"""What a reader makes of an answer's text as it comes, and what all readers are.

Invariant of every reader: what it says, joined by kind and by call, depends on the whole text only, never on
how the text was cut into pieces; and no text makes it raise.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

__all__ = ["TOKEN_SIGN", "Malformed", "Reader", "Said", "Spell", "find_mark", "joined"]

Kind = Literal["content", "reasoning", "call", "arguments"]

# Stands before a mark that came as a control token. It is half a surrogate pair, which no text has, so text
# that spells such a mark is never taken for one.
TOKEN_SIGN = "\ud800"

Spell = Callable[[str], str]  # a mark, as it comes in what is read


class Said(NamedTuple):
    """A stretch of content, reasoning, or arguments of the call that came last; or a call's name, whole."""

    kind: Kind
    text: str


class Malformed(Exception):
    """What looked like a call is none. Never leaves the room."""


class Reader(Protocol):
    """Reads one answer."""

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        ...

    def push(self, text: str) -> list[Said]:
        """What may be told now. Mutates."""
        ...

    def finish(self, *, is_cut: bool) -> list[Said]:
        """At the end of the text: what was held back. The beginning of a call that was cut off before its
        name is no content, and is dropped. Mutates.
        """
        ...


def joined(said: Iterable[Said]) -> list[Said]:
    """The same with neighbours of one kind as one; calls stay apart."""
    told: list[Said] = []
    for each in said:
        if told and told[-1].kind == each.kind != "call":
            told[-1] = Said(each.kind, told[-1].text + each.text)
        elif each.text:
            told.append(each)
    return told


def find_mark(text: str, marks: Sequence[str]) -> tuple[int, str | None]:
    """Where the first of some marks stands, and which; or where a mark may have begun, and None."""
    found = [(place, mark) for mark in marks if (place := text.find(mark)) >= 0]
    if found:
        return min(found, key=lambda each: (each[0], -len(each[1])))
    longest = max(map(len, marks), default=0)
    for place in range(max(0, len(text) - longest + 1), len(text)):
        if any(mark.startswith(text[place:]) for mark in marks):
            return place, None
    return len(text), None
