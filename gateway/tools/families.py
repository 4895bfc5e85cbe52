"""Which form a model's calls have: read from its template and its vocabulary.

A template that says nothing of tools is told of them in the form of Hermes, and answers without the marks are
understood too.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.tools.bodies import Body, ChosenBody, ListBody, NamedBody, RowBody
from gateway.tools.channels import CHANNEL_MARKS, ChannelReader
from gateway.tools.marked import MarkedReader
from gateway.tools.pythonic import PythonicBody
from gateway.tools.said import Reader, Spell
from gateway.tools.tagged import TaggedBody

__all__ = ["CHANNELS", "Family", "Shape", "family_of"]


Tools = Mapping[str, Mapping[str, Any]]  # the schemas of their parameters, by their names


class Shape(NamedTuple):
    """How calls are written where they are demanded."""

    name_from: str  # before a call's name
    name_to: str  # between its name and its arguments
    end: str = ""  # behind its arguments
    between: str = ""
    before: str = ""  # all of them
    after: str = ""
    mark: str = ""  # with which they begin wherever they stand; none: they begin the answer
    plain: str = ""  # without a mark: the letters that no other answer begins with
    has_many: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """One form."""

    name: str
    reader: Callable[[Tools, Spell], Reader]  # of calls of these
    shape: Shape
    marks: tuple[str, ...] = ()  # that may be control tokens


_HERMES = Shape('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", mark="<tool_call>")
_OBJECTS = Shape('{"name": "', '", "parameters": ', "}", "; ", plain="{")


def _hermes(names: Collection[str], spell: Spell) -> Reader:
    return MarkedReader(
        {spell("<tool_call>"): lambda: RowBody(names, between="", is_one=True)},
        closings=(spell("</tool_call>"),),
    )


def _hermes_or_objects(names: Collection[str], spell: Spell) -> Reader:
    return MarkedReader(
        {spell("<tool_call>"): lambda: RowBody(names, between="", is_one=True)},
        closings=(spell("</tool_call>"),),
        first={"{": lambda: RowBody(names, between=";,")},
    )


def _objects(names: Collection[str], spell: Spell) -> Reader:
    return MarkedReader(
        {spell("<|python_tag|>"): lambda: RowBody(names, between=";,")},
        first={"{": lambda: RowBody(names, between=";,")},
    )


def _pythonic(names: Collection[str], spell: Spell) -> Reader:
    openings = (spell("<|python_start|>"), spell("<|python_tag|>"))
    return MarkedReader(
        {opening: lambda: PythonicBody(names) for opening in openings},
        closings=(spell("<|python_end|>"),),
        first={"[": lambda: PythonicBody(names), "{": lambda: RowBody(names, between=";,")},
    )


def _mistral(names: Collection[str], spell: Spell) -> Reader:
    forms: dict[str, Callable[[], Body]] = {
        "[": lambda: ListBody(names),
        "{": lambda: RowBody(names, between=","),
    }
    return MarkedReader(
        {spell("[TOOL_CALLS]"): lambda: ChosenBody(forms, otherwise=lambda: NamedBody(names))}
    )


def _tagged(names: Tools, spell: Spell) -> Reader:
    def body() -> ChosenBody:
        return ChosenBody(
            {"<": lambda: TaggedBody(names)}, otherwise=lambda: RowBody(names, between="", is_one=True)
        )

    return MarkedReader({spell("<tool_call>"): body}, closings=(spell("</tool_call>"),))


CHANNELS = Family(
    "channels",
    ChannelReader,
    Shape("", ""),  # of messages, which `demands.channels_part` describes
    CHANNEL_MARKS,
)
_MISTRAL_MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
_LISTED = Shape(
    '{"name": "', '", "arguments": ', "}", ", ", before="[TOOL_CALLS][", after="]", mark="[TOOL_CALLS]"
)
_NAMED = Shape("[TOOL_CALLS]", "[ARGS]", mark="[TOOL_CALLS]")


def family_of(source: str, special: Mapping[str, int]) -> Family:
    """The form of a model with this template and these special tokens."""
    if "<|channel|>" in source and "<|channel|>" in special:
        return CHANNELS
    if "[TOOL_CALLS]" in source:
        shape = _NAMED if "[ARGS]" in source else _LISTED
        return Family("mistral", _mistral, shape, _MISTRAL_MARKS)
    if "<tool_call>" in source:
        name, reader = ("tagged", _tagged) if "<function=" in source else ("hermes", _hermes)
        return Family(name, reader, _HERMES, ("<tool_call>", "</tool_call>"))
    if "func_name1(" in source or "<|python_start|>" in source:
        marks = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")
        return Family("pythonic", _pythonic, _OBJECTS._replace(plain="{["), marks)
    if "<|python_tag|>" in source or '"parameters": dictionary' in source:
        return Family("objects", _objects, _OBJECTS, ("<|python_tag|>",))
    return Family("hermes", _hermes_or_objects, _HERMES, ("<tool_call>", "</tool_call>"))
