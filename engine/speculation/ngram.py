"""Proposals from the text itself: what followed the last tokens when they stood there before.

Prompt lookup (Saxena, 2023). Each sequence has an index from runs of tokens to where they last ended,
extended by its new tokens alone, so a step costs the same however long the text is.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from engine.sequence import Sequence as TokenSequence
from engine.step import Span, Step

__all__ = ["NgramProposer"]

_LENGTHS = (4, 3, 2)  # of the runs that are looked for, the longest first


@dataclass(slots=True)
class _Index:
    """Where runs of tokens ended, for the first `num_known` tokens of a text."""

    num_known: int = 0
    ends: dict[bytes, int] = field(default_factory=dict)  # packed run -> the place after its latest end

    def extend(self, tokens: "array[int]") -> None:
        """Take in what is new, but for the last token: what follows it is what is asked."""
        first = max(self.num_known + 1 - _LENGTHS[0], 0)
        packed, size = tokens[first:].tobytes(), tokens.itemsize
        for end in range(self.num_known + 1, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self.ends[packed[(end - length - first) * size : (end - first) * size]] = end
        self.num_known = max(len(tokens) - 1, 0)

    def find(self, tokens: "array[int]") -> int | None:
        """The place after the latest earlier occurrence of the text's last tokens."""
        for length in _LENGTHS:
            if len(tokens) > length and (end := self.ends.get(tokens[-length:].tobytes())) is not None:
                return end
        return None


class NgramProposer:
    """Remembers nothing of a sequence that is gone."""

    def __init__(self) -> None:
        self._indexes: WeakKeyDictionary[TokenSequence, _Index] = WeakKeyDictionary()

    def follow(self, step: Step) -> None:
        """Blocks say nothing to it."""

    def propose(self, spans: Sequence[Span]) -> list[list[int]]:
        """For each span, at most `num_lookahead` tokens that followed before; none where nothing repeats."""
        return [self._propose(span.sequence, span.num_lookahead) for span in spans]

    def _propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        index = self._indexes.setdefault(sequence, _Index())
        index.extend(sequence.tokens)
        place = index.find(sequence.tokens)
        if place is None:
            return []
        known = sequence.tokens[place : place + num_tokens].tolist()
        period = len(sequence.tokens) - place
        while len(known) < num_tokens:  # the text's end came first: what repeats goes on repeating
            known.append(known[-period])
        return known
