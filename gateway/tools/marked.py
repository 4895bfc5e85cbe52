"""Content, and calls behind marks: the reader that most families share, with bodies of their own.

Only what may be the beginning of a mark is held back, and blanks at the end of content, which are dropped
where a call follows. Marks that close a call are dropped behind one, and are content elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence

from gateway.tools.bodies import Body
from gateway.tools.said import Malformed, Said, find_mark, joined

__all__ = ["MarkedReader", "Openings"]

Openings = Mapping[str, Callable[[], Body]]


class MarkedReader:
    """Implements Reader. `first` are letters that open calls where an answer begins with them."""

    is_reasoning = False

    def __init__(
        self, openings: Openings, *, closings: Sequence[str] = (), first: Openings | None = None
    ) -> None:
        self._openings = openings
        self._closings = closings
        self._marks = (*openings, *closings)
        self._first = first or {}
        self._is_start = True
        self._is_behind_call = False  # with nothing but blanks since
        self._held = ""  # content that is not told yet
        self._opening = ""  # what opened the body
        self._body: Body | None = None

    def push(self, text: str) -> list[Said]:
        """See Reader."""
        said: list[Said] = []
        while text:
            text = self._content(text, said) if self._body is None else self._call(self._body, text, said)
        return joined(said)

    def finish(self, *, is_cut: bool) -> list[Said]:
        """See Reader."""
        said = [] if self._body is None else self._body.finish()
        rest = self._held
        if self._body is not None and not (is_cut and self._opening):
            rest += self._opening + self._body.loose
        # behind a call what is held are blanks, and maybe the beginning of a mark
        if not self._is_behind_call or (rest.strip() and not is_cut):
            said.append(Said("content", rest))
        self._held, self._body = "", None
        return joined(said)

    def _content(self, text: str, said: list[Said]) -> str:
        """Read content up to a mark, if there is one; what follows it is left."""
        text, self._held = self._held + text, ""
        if self._is_start:
            first = text.lstrip()
            if not first:
                self._held = text
                return ""
            self._is_start = False
            if first[0] in self._first:
                blanks = text[: len(text) - len(first)]
                return self._open(blanks, "", self._first[first[0]], first)
        place, mark = find_mark(text, self._marks)
        if mark is None:
            self._hold(text, place, said)
            return ""
        before, after = text[:place], text[place + len(mark) :]
        if mark in self._openings:
            self._tell(before.rstrip(), said)
            return self._open(before[len(before.rstrip()) :], mark, self._openings[mark], after)
        if self._is_behind_call and not before.strip():
            return after
        self._tell(before + mark, said)
        return after

    def _hold(self, text: str, place: int, said: list[Said]) -> None:
        """Tell what is no blank at the end, and cannot be a mark's beginning."""
        length = len(text[:place].rstrip())
        self._tell(text[:length], said)
        self._held = text[length:]

    def _tell(self, content: str, said: list[Said]) -> None:
        if content:
            self._is_behind_call = False
            said.append(Said("content", content))

    def _open(self, blanks: str, mark: str, body: Callable[[], Body], after: str) -> str:
        self._held, self._opening, self._body = blanks, mark, body()
        return after

    def _call(self, body: Body, text: str, said: list[Said]) -> str:
        """Read letters of a call; what follows it is left."""
        for place, letter in enumerate(text):
            try:
                news = body.push(letter)
            except Malformed:
                self._end(body, said)
                return text[place:]
            if news:
                # what stood before the call is told or dropped by now
                self._held = self._opening = ""
                self._is_behind_call = True
                said += news
            if body.is_done:
                self._body = None
                return text[place + 1 :]
        return ""

    def _end(self, body: Body, said: list[Said]) -> None:
        said += body.finish()
        self._body = None
        loose = self._opening + body.loose
        if loose.strip():
            self._tell(self._held + loose, said)
            self._held = ""
        else:
            self._held += loose
        self._opening = ""
