"""Where the answers of a stored conversation stand in its rendering, so that their very ids can stand there.

An answer stands after what the template writes to open it: a special token and the beginning of a stretch.
Both are seen in any prompt that asks for an answer. Invariant: a stretch that is found holds that beginning
and the whole text of the answer, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.conversation.messages import Message
from gateway.conversation.runs import Rendering

__all__ = ["Answer", "Opening", "answers_in"]


@dataclass(frozen=True, slots=True)
class Opening:
    """What the template writes before an answer: the last special token, if any, and the text after it."""

    special: int | None
    text: str

    @classmethod
    def of(cls, rendering: Rendering) -> "Opening":
        """As it stands at the end of a prompt that asks for an answer."""
        closed = rendering.closed_units
        last = closed[-1] if closed else None
        return cls(last if isinstance(last, int) else None, rendering.open_stretch)


class Answer(NamedTuple):
    """One answer in a stretch: what the template wrote before it, its text, and its ids, packed int32."""

    begun: str
    text: str
    ids: bytes


def answers_in(
    rendering: Rendering,
    messages: Sequence[Message],
    written: Mapping[int, tuple[str, bytes]],
    opening: Opening,
) -> dict[int, Answer] | None:
    """The answers by their places among the units. `written` has of messages, by their index, what the model
    wrote and its packed ids.

    None: the rendering does not show one stretch for each message of the assistant's, so they cannot be told
    apart. An answer whose text the template changed is left out.
    """
    assistants = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    stretches = [
        (place, unit)
        for place, unit in enumerate(rendering.units[:-1])
        if isinstance(unit, str)
        and unit.startswith(opening.text)
        and (rendering.units[place - 1] if place else None) == opening.special
    ]
    if len(stretches) != len(assistants):
        return None
    found: dict[int, Answer] = {}
    for (place, unit), index in zip(stretches, assistants, strict=True):
        text, ids = written.get(index, ("", b""))
        if index in written and unit == opening.text + text:
            found[place] = Answer(opening.text, text, ids)
    return found
