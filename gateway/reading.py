"""How the answers of one chat request are read: what of their text is content, reasoning, or a call.

It owns the choice of readers for a model and a request, and what an answer's grammar must allow so that it
can be read. A request without tools, to a model that does not reason, has nothing to read: all is content.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.conversation.prompt import Prompt, Prompts
from gateway.errors import InvalidRequest
from gateway.schemas import ANY_OBJECT, schema_part
from gateway.tools.demands import (
    ANY_TEXT,
    Callee,
    calls_part,
    channels_part,
    free_part,
    thought_part,
)
from gateway.tools.families import CHANNELS, Family, family_of
from gateway.tools.only_calls import OnlyCalls
from gateway.tools.said import TOKEN_SIGN, Reader
from gateway.tools.thoughts import THOUGHT_MARKS, ThoughtMarks, ThoughtReader
from gateway.wire.chat_request import ChatRequest
from gateway.wire.tool_fields import Tool

__all__ = ["Reading", "Readings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """For one request."""

    family: Family
    thoughts: ThoughtMarks | None
    control: Mapping[str, int]  # marks that are control tokens, with their ids
    marks: Mapping[str, int]  # these, and those of reasoning that are tokens of any kind
    tools: Mapping[int, Tool]  # that may be called, by their places in the request
    must_call: bool
    may_call_more: bool
    is_inside: bool  # the prompt has opened the reasoning
    max_thought: int | None  # tokens of reasoning
    is_continued: bool  # the prompt ends inside an answer

    @property
    def spellings(self) -> dict[int, str]:
        """Of control tokens that are read as text, by their ids."""
        return {token_id: spelling for spelling, token_id in self.control.items()}

    def reader(self) -> Reader | None:
        """A fresh one, for one choice; None where all is content."""
        tools = {tool.function.name: tool.function.parameters or {} for tool in self.tools.values()}
        calls = self.family.reader(tools, self._spell) if tools or self.family is CHANNELS else None
        if calls is not None and self.must_call and self.family is not CHANNELS:
            calls = OnlyCalls(calls)
        if self.thoughts is None:
            return calls
        marks = ThoughtMarks(*map(self._spell, self.thoughts))
        return ThoughtReader(marks, calls, is_inside=self.is_inside)

    def _spell(self, mark: str) -> str:
        return TOKEN_SIGN + mark if mark in self.control else mark

    def constrain(self, part: str | None) -> str:
        """The part of a grammar that the answer must be, with calls and reasoning; `part` is what its content
        must be, None if it may be anything.

        Raises InvalidRequest for a tool's schema that cannot be followed. Large ones take up to a tenth of a
        second.
        """
        if self.family is CHANNELS and self.is_continued:
            return ANY_TEXT if part is None else part
        callees = [_callee(place, tool) for place, tool in self.tools.items()]
        if self.family is CHANNELS:
            return channels_part(
                callees, part, self.marks, must_call=self.must_call, max_tokens=self.max_thought
            )
        held = self._with_calls(part, callees)
        if self.thoughts is None:
            return held
        return thought_part(
            self.thoughts, held, self.marks, is_inside=self.is_inside, max_tokens=self.max_thought
        )

    def _with_calls(self, part: str | None, callees: Sequence[Callee]) -> str:
        if not callees:
            return ANY_TEXT if part is None else part
        shape, is_one = self.family.shape, not self.may_call_more
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
        self.marks: Mapping[str, int] = self._control | {
            mark: special[mark] for mark in self._thoughts or () if mark in special
        }

    @property
    def has_reasoning(self) -> bool:
        """Whether the model speaks of any."""
        return self._thoughts is not None or self._family is CHANNELS

    def of(self, chat: ChatRequest, prompt: Prompt) -> Reading:
        """How the answers to a prompt are read. Raises InvalidRequest for a budget that cannot be kept."""
        if chat.thinking_token_budget is not None:
            self._check_budget()
        tail = self._prompts.tail(prompt).rstrip()
        return Reading(
            family=self._family,
            thoughts=self._thoughts,
            control=self._control,
            marks=self.marks,
            tools=chat.callable_tools,
            must_call=chat.must_call,
            may_call_more=chat.may_call_more,
            is_inside=self._thoughts is not None and tail.endswith(self._thoughts.opening),
            max_thought=chat.thinking_token_budget,
            is_continued=bool(chat.continue_final_message),
        )

    def _check_budget(self) -> None:
        if self._family is CHANNELS or (self._thoughts is not None and self._thoughts.closing in self.marks):
            return
        fault = "writes the end of its reasoning in letters" if self.has_reasoning else "does not reason"
        raise InvalidRequest(
            f"thinking_token_budget cannot be kept: this model {fault}; leave it out.",
            param="thinking_token_budget",
            code="unsupported_parameter",
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
