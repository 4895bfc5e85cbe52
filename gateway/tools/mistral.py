"""Mistral's calls: behind `[TOOL_CALLS]` a list of objects, or a name and its arguments."""

from collections.abc import Collection

from gateway.tools.bodies import Body, ListBody, NamedBody, RowBody
from gateway.tools.said import Said

__all__ = ["MistralBody"]


class MistralBody:
    """Whichever of the forms the first letter begins. Implements Body."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
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
            if letter.isspace():
                self._blanks += letter
                return []
            self._body = self._begun(letter)
        return self._body.push(letter)

    def finish(self) -> list[Said]:
        """See Body."""
        return [] if self._body is None else self._body.finish()

    def _begun(self, letter: str) -> Body:
        if letter == "[":
            return ListBody(self._names)
        return RowBody(self._names, between=",") if letter == "{" else NamedBody(self._names)
