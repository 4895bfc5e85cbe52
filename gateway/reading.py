"""How the answers of one chat request are read: what of their text is content, reasoning, or a call.

It owns the choice of readers for a model and a request, and what an answer's grammar must allow so that it
can be read. A request without tools, to a model that does not reason, has nothing to read: all is content.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.conversation.prompt import Prompt, Prompts
from gateway.errors import InvalidRequest
from gateway.schemas import ANY_OBJECT, schema_part
from gateway.tools.demands import Callee, calls_part, free_part, thought_part
from gateway.tools.families import CHANNELS, Family, family_of
from gateway.tools.said import Reader
from gateway.tools.thoughts import THOUGHT_MARKS, ThoughtMarks, ThoughtReader
from gateway.wire.chat_request import ChatRequest
from gateway.wire.tool_fields import Tool

__all__ = ["Reading", "Readings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """For one request. `control` has the ids of marks that are control tokens."""

    family: Family
    thoughts: ThoughtMarks | None
    control: Mapping[str, int]
    tools: Mapping[int, Tool]  # that may be called, by their places in the request
    must_call: bool
    may_call_more: bool
    is_inside: bool  # the prompt has opened the reasoning

    @property
    def spellings(self) -> dict[int, str]:
        """Of control tokens that are read as text, by their ids."""
        return {token_id: spelling for spelling, token_id in self.control.items()}

    def reader(self) -> Reader | None:
        """A fresh one, for one choice; None where all is content."""
        names = frozenset(tool.function.name for tool in self.tools.values())
        calls = self.family.reader(names) if names or self.family is CHANNELS else None
        if self.thoughts is None:
            return calls
        return ThoughtReader(self.thoughts, calls, is_inside=self.is_inside)

    def constrain(self, part: str | None) -> str | None:
        """The part of a grammar that the answer must be, with calls and reasoning; `part` is what its content
        must be. None if it may be anything.

        Raises InvalidRequest for a tool's schema that cannot be followed. Large ones take up to a tenth of a
        second.
        """
        with_calls = self._with_calls(part)
        if with_calls is None or self.thoughts is None:
            return with_calls
        return thought_part(self.thoughts, with_calls, self.control, is_inside=self.is_inside)

    def _with_calls(self, part: str | None) -> str | None:
        is_strict = any(tool.function.strict for tool in self.tools.values())
        # on channels a call may follow other messages, which no part of a grammar describes yet
        is_free = self.family is CHANNELS or not (is_strict or part is not None)
        if not self.tools or (is_free and not self.must_call):
            return part
        shape, is_one = self.family.shape, not self.may_call_more
        callees = [_callee(place, tool) for place, tool in self.tools.items()]
        if part is None and not self.must_call:
            return free_part(shape, callees, self.control, is_one=is_one)
        calls = calls_part(shape, callees, self.control, is_one=is_one)
        return calls if self.must_call else f"({part}) | {calls}"


class Readings:
    """Of one model."""

    def __init__(self, prompts: Prompts) -> None:
        tokenizer, source = prompts.tokenizer, prompts.template_source
        self._prompts = prompts
        self._family = family_of(source, tokenizer.special_tokens)
        self._thoughts = None
        if self._family is not CHANNELS:
            self._thoughts = _thoughts_of(source, tokenizer.special_tokens)
        marks = (*self._family.marks, *(self._thoughts or ()))
        special, control = tokenizer.special_tokens, tokenizer.control_ids
        self._control = {mark: special[mark] for mark in marks if special.get(mark) in control}

    @property
    def has_reasoning(self) -> bool:
        """Whether the model speaks of any."""
        return self._thoughts is not None or self._family is CHANNELS

    def of(self, chat: ChatRequest, prompt: Prompt) -> Reading:
        """How the answers to a prompt are read."""
        tail = self._prompts.tail(prompt).rstrip()
        return Reading(
            family=self._family,
            thoughts=self._thoughts,
            control=self._control,
            tools=chat.callable_tools,
            must_call=chat.must_call,
            may_call_more=chat.may_call_more,
            is_inside=self._thoughts is not None and tail.endswith(self._thoughts.opening),
        )


def _thoughts_of(source: str, special: Mapping[str, int]) -> ThoughtMarks | None:
    """The marks that a model speaks of, if any."""
    for marks in THOUGHT_MARKS:
        if marks.closing in source or (marks.opening in special and marks.closing in special):
            return marks
    return None


def _callee(place: int, tool: Tool) -> Callee:
    function = tool.function
    schema = {**ANY_OBJECT, **(function.parameters or {})}
    path = f"tools.{place}.function.parameters"
    if schema["type"] != "object":
        raise InvalidRequest(f"{path} must be the schema of an object, as arguments are.", param=path)
    return Callee(function.name, schema_part(schema, is_strict=bool(function.strict), path=path))
