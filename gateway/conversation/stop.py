"""Stop strings in text that comes in pieces.

It owns the text that may yet turn out to be the head of a stop string, and holds back no other. Among several
stop strings the one that ends first wins, as the reader of a growing text would see it; of two that end at
the same character, the longer. Invariant: the text let through depends on the whole text only, never on how
it was cut into pieces. Matching is Knuth's, Morris' and Pratt's: linear in all.
"""

from collections.abc import Sequence

__all__ = ["StopMatcher", "StopStrings"]

_NOTHING = (0, "")


class StopStrings:
    """The stop strings of one request, prepared once for all its choices. Empty ones are not allowed."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match at once"
        longest_first = sorted(set(stops), key=lambda stop: (-len(stop), stop))
        self.prepared = tuple((stop, _borders(stop)) for stop in longest_first)


class StopMatcher:
    """Watches one choice."""

    def __init__(self, stops: StopStrings, include_stop: bool = False) -> None:
        self._include_stop = include_stop
        self._needles = [_Needle(text, borders) for text, borders in stops.prepared]
        self._held = _NOTHING  # how many characters are held back, and the stop string that they begin
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> tuple[str, bool]:
        """What may be sent now, and whether a stop string has ended the text; then nothing is let through."""
        if not self._needles:
            return text, False
        if self.matched is not None:
            return "", True
        for end, character in enumerate(text, start=self._held[0] + 1):
            # Every needle reads every character; the longest comes first, so it wins a tie.
            hits = [needle for needle in self._needles if needle.reads(character)]
            if hits:
                self.matched = hits[0].text
                sent = self._first(end if self._include_stop else end - len(self.matched), text)
                self._held = _NOTHING
                return sent, True
        held = max(((needle.num_matched, needle.text) for needle in self._needles), default=_NOTHING)
        sent = self._first(self._held[0] + len(text) - held[0], text)
        self._held = held
        return sent, False

    def flush(self) -> str:
        """At the end of the text: what was held back and belongs to it after all."""
        held = self._first(self._held[0], "")
        self._held = _NOTHING
        return held

    def _first(self, count: int, text: str) -> str:
        """The first characters of what was held back and of what came now, together."""
        num_held, stop = self._held
        return stop[: min(count, num_held)] + text[: max(count - num_held, 0)]


class _Needle:
    """One stop string, and how much of it the text ends with."""

    __slots__ = ("_borders", "num_matched", "text")

    def __init__(self, text: str, borders: Sequence[int]) -> None:
        self.text = text
        self.num_matched = 0
        self._borders = borders

    def reads(self, character: str) -> bool:
        """Whether the text ends with the needle now. Not called again after it has answered yes."""
        while self.num_matched and self.text[self.num_matched] != character:
            self.num_matched = self._borders[self.num_matched - 1]
        if self.text[self.num_matched] == character:
            self.num_matched += 1
        return self.num_matched == len(self.text)


def _borders(text: str) -> list[int]:
    """For each prefix, the length of the longest shorter prefix that it also ends with."""
    borders = [0]
    for character in text[1:]:
        length = borders[-1]
        while length and text[length] != character:
            length = borders[length - 1]
        borders.append(length + (text[length] == character))
    return borders
