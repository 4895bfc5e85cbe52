"""Cuts very long text into pieces that an encoder can take one after the other without a piece's words
changing.

The encoder's regular expressions keep a stack entry for every character of a run of blanks: a third of a
million of them overflow it. So text is handed over in segments of at most 64 Ki characters. Invariant:
segments join to the text; where a cut is at all possible between two words it is made there, and only a run
of 32 Ki characters without any such place is cut inside a word.
"""

import re
from collections.abc import Iterator

__all__ = ["MAX_SEGMENT", "segments"]

MAX_SEGMENT = 65536  # characters
_MIN_SEGMENT = MAX_SEGMENT // 2

# Every pattern that we know ends a word here: no word holds a letter or number before any other sign, or a
# blank after one.
_BETWEEN_WORDS = re.compile(r"[^\W_](?=[\W_])|\S(?= )")


def segments(text: str) -> Iterator[str]:
    """The text in order, in pieces of at most `MAX_SEGMENT` characters."""
    start = 0
    while len(text) - start > MAX_SEGMENT:
        limit = start + MAX_SEGMENT
        found = _BETWEEN_WORDS.search(text, start + _MIN_SEGMENT, limit)
        end = found.end() if found else limit
        yield text[start:end]
        start = end
    yield text[start:]
