"""Of an answer that must be calls: what else is read of it is the beginning of one that was cut off."""

from gateway.tools.said import Reader, Said

__all__ = ["OnlyCalls"]


class OnlyCalls:
    """Implements Reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def is_reasoning(self) -> bool:
        """See Reader."""
        return self._reader.is_reasoning

    def push(self, text: str) -> list[Said]:
        """See Reader."""
        return _without_content(self._reader.push(text))

    def finish(self, *, is_cut: bool) -> list[Said]:
        """See Reader."""
        return _without_content(self._reader.finish(is_cut=is_cut))


def _without_content(said: list[Said]) -> list[Said]:
    return [each for each in said if each.kind != "content"]
