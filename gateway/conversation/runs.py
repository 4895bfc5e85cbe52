"""A rendered prompt in its parts: special tokens that the template wrote, and the plain text between them.

Before the template runs, `Guard` hides in every client's string whatever could be read as a special token
behind private-use characters that occur nowhere in the request; `split` then finds special tokens in what the
template made, and puts the hidden text back as plain text. Invariant: a special id in a rendering was written
by the template.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

__all__ = ["Guard", "Rendering", "SpecialTokens", "TooManyPrivateCharacters"]

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class TooManyPrivateCharacters(ValueError):
    """The request uses every private-use character, so nothing can be hidden in it."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A prompt as typed runs: ids of special tokens and, never side by side, stretches of plain text."""

    units: tuple[int | str, ...]
    model: bytes = b""  # the digest of template and tokenizer that made it

    @property
    def open_stretch(self) -> str:
        """The text that an answer would continue: what follows the last special token."""
        last = self.units[-1] if self.units else ""
        return last if isinstance(last, str) else ""

    @property
    def closed_units(self) -> tuple[int | str, ...]:
        """All units but the open stretch."""
        return self.units[:-1] if self.open_stretch else self.units


class SpecialTokens:
    """The spellings that become special ids, and how to find them. Where two overlap, the longer wins."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        self.spellings = sorted((spelling for spelling in ids if spelling), key=lambda s: (-len(s), s))
        either = "|".join(map(re.escape, self.spellings)) or r"(?!)"
        self._find = re.compile(either)
        self._starts = re.compile(f"(?={either})")  # finds those that overlap, too
        self._heads = {spelling[:k] for spelling in self.spellings for k in range(1, len(spelling))}
        self._tails = {spelling[k:] for spelling in self.spellings for k in range(1, len(spelling))}
        self._longest = max(map(len, self.spellings), default=0)

    def without(self, spellings: Iterable[str]) -> "SpecialTokens":
        """The same tokens but these."""
        dropped = frozenset(spellings)
        return SpecialTokens({spelling: i for spelling, i in self.ids.items() if spelling not in dropped})

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Special tokens in the text, from left to right."""
        return self._find.finditer(text)

    def places_to_hide(self, text: str) -> set[int]:
        """The positions of characters without which no special token can touch this text, even at its edges.

        Edges count with and without blanks around the text, since templates like to trim.
        """
        places = {match.start() for match in self._starts.finditer(text)}
        trimmed = text.strip()
        first = text.find(trimmed)
        return places | self._edges(text) | {first + place for place in self._edges(trimmed)}

    def _edges(self, text: str) -> set[int]:
        """Where a text begins or ends with a part of a spelling, or is one: neighbours may complete it."""
        reach = range(1, min(len(text), self._longest - 1) + 1)
        heads = {len(text) - k for k in reach if text[-k:] in self._heads}
        tails = {k - 1 for k in reach if text[:k] in self._tails}
        is_part = reach and not text.isspace() and any(text in spelling for spelling in self.spellings)
        return heads | tails | ({0} if is_part else set())


class Guard:
    """Hides special tokens in the strings of one request, and splits what was rendered from it."""

    def __init__(
        self, special: SpecialTokens, *, texts: Iterable[str], spoken: frozenset[str] = frozenset()
    ) -> None:
        """`texts` are all that the rendering may be made of: no character of theirs is used for hiding. Words
        that the template itself speaks are left alone, since it may compare with them.
        """
        self._special = special
        self._spoken = spoken
        self._unused = _unused_characters(texts)
        self._hidden: dict[str, str] = {}  # character -> its stand-in

    def stand_in(self, character: str) -> str:
        """The private-use character that stands for this one. Raises TooManyPrivateCharacters."""
        if character not in self._hidden:
            self._hidden[character] = self.mark()
        return self._hidden[character]

    def mark(self) -> str:
        """A fresh character that occurs nowhere. Raises TooManyPrivateCharacters."""
        fresh = next(self._unused, None)
        if fresh is None:
            raise TooManyPrivateCharacters("the request uses every private-use character of Unicode")
        return fresh

    def hide(self, value: Any) -> Any:
        """A copy of JSON-like data with every string in it made harmless, keys too."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def split(self, rendered: str, *, written: SpecialTokens) -> tuple[int | str, ...]:
        """The units of a rendered prompt; `written` are the tokens to look for in it."""
        units: list[int | str] = []
        start = 0
        for match in written.matches(rendered):
            units += [self._show(rendered[start : match.start()]), written.ids[match[0]]]
            start = match.end()
        units.append(self._show(rendered[start:]))
        return tuple(unit for unit in units if unit != "")

    def _show(self, text: str) -> str:
        for character, stand_in in self._hidden.items():
            text = text.replace(stand_in, character)
        return text

    def _hide_text(self, text: str) -> str:
        if text in self._spoken:
            return text
        places = self._special.places_to_hide(text)
        if not places:
            return text
        letters = list(text)
        for place in places:
            letters[place] = self.stand_in(letters[place])
        return "".join(letters)


def _unused_characters(texts: Iterable[str]) -> Iterator[str]:
    used = set().union(*texts)  # not before the first character is asked for: most requests need none
    yield from (chr(point) for point in chain(*_PRIVATE_USE) if chr(point) not in used)
