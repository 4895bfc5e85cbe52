"""What stands behind a mark that opens calls, letter by letter: one object, a row of them, or a list.

`loose` is what was read since the last whole call and is told of none: should the rest be no call, it is
content.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from gateway.tools.call_object import CallObject, ValueEnd
from gateway.tools.said import TOKEN_SIGN, Malformed, Said

__all__ = ["Body", "ChosenBody", "ListBody", "NamedBody", "RowBody"]

_BLANK = " \t\r\n"
_MAX_NAME = 200  # characters, with the words in brackets behind it


class Body(Protocol):
    """Fed until it is done."""

    @property
    def loose(self) -> str:
        """What was read since the last whole call, and is told of none."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether nothing more belongs to it."""
        ...

    def push(self, letter: str) -> list[Said]:
        """Take a letter. Raises Malformed for one that belongs to no call: it is still to be read."""
        ...

    def finish(self) -> list[Said]:
        """At the end of the text: what is there of arguments."""
        ...


class ChosenBody:
    """Whichever body the first letter begins. Blanks may stand before it."""

    def __init__(self, by_letter: Mapping[str, Callable[[], Body]], *, otherwise: Callable[[], Body]) -> None:
        self._by_letter = by_letter
        self._otherwise = otherwise
        self._blanks = ""
        self._body: Body | None = None

    @property
    def loose(self) -> str:
        """See Body."""
        return self._blanks if self._body is None else self._blanks + self._body.loose

    @property
    def is_done(self) -> bool:
        """See Body."""
        return self._body is not None and self._body.is_done

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        if self._body is None:
            if letter in _BLANK:
                self._blanks += letter
                return []
            self._body = self._by_letter.get(letter, self._otherwise)()
        said = self._body.push(letter)
        self._blanks = "" if said else self._blanks
        return said

    def finish(self) -> list[Said]:
        """See Body."""
        return [] if self._body is None else self._body.finish()


class RowBody:
    """Objects, and between them what `between` allows; the first may follow blanks."""

    def __init__(self, names: Collection[str], *, between: str, is_one: bool = False) -> None:
        self.loose = ""
        self.is_done = False
        self._names = names
        self._between = between + _BLANK
        self._is_one = is_one
        self._object: CallObject | None = CallObject(names)
        self.has_called = False

    @property
    def is_between(self) -> bool:
        """Whether a call is whole and no other begun."""
        return self._object is None

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        if self._object is None:
            if letter == "{":
                self._object = CallObject(self._names)
            elif letter not in self._between:
                raise Malformed
            else:
                self.loose += letter
                return []
        said = self._object.push(letter)
        self.has_called |= self._object.has_begun
        self.loose = "" if self._object.has_begun else self.loose + letter
        if self._object.is_done:
            self._object = None
            self.is_done = self._is_one
        return said

    def finish(self) -> list[Said]:
        """See Body."""
        return [] if self._object is None else self._object.finish()


class ListBody:
    """A JSON array of objects."""

    def __init__(self, names: Collection[str]) -> None:
        self.loose = ""
        self.is_done = False
        self._row = RowBody(names, between=",")
        self._is_open = False

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        if not self._is_open:
            if letter not in "[" + _BLANK:
                raise Malformed
            self._is_open = letter == "["
            self.loose += letter
            return []
        if letter == "]" and self._row.is_between:
            self.is_done = True
            return []
        said = self._row.push(letter)
        self.loose = self.loose + letter if not self._row.has_called else self._row.loose
        return said

    def finish(self) -> list[Said]:
        """See Body."""
        return self._row.finish()


class NamedBody:
    """A name, words in brackets that change nothing, and an object of arguments."""

    def __init__(self, names: Collection[str]) -> None:
        self.loose = ""
        self.is_done = False
        self._names = names
        self._end: ValueEnd | None = None

    def push(self, letter: str) -> list[Said]:
        """See Body."""
        if self._end is not None:
            _, self.is_done = self._end.takes(letter)
            return [Said("arguments", letter)]
        if letter != "{":
            if len(self.loose) >= _MAX_NAME:
                raise Malformed
            self.loose += letter
            return []
        name = self.loose.replace(TOKEN_SIGN, "").split("[")[0].strip()
        if name not in self._names:
            raise Malformed
        self._end, self.loose = ValueEnd(letter), ""
        return [Said("call", name), Said("arguments", letter)]

    def finish(self) -> list[Said]:
        """See Body."""
        return []
