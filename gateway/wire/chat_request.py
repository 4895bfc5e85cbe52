"""The body of POST /v1/chat/completions: what it has beside the fields of all requests for text."""

from typing import Annotated, Any, Literal

from pydantic import FailFast

from gateway.wire.messages import Message
from gateway.wire.text_request import TextRequest
from gateway.wire.tool_fields import ChoiceField, Tool, ToolsField

__all__ = ["ChatRequest"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatRequest(TextRequest):
    """A request whose fields have the right types; out of `parse_chat_request` they are in range too."""

    messages: Annotated[list[Message], FailFast()]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # how to render
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    session_id: str | None = None
    # how much to reason
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # what may be called
    tools: ToolsField = None
    tool_choice: ChoiceField = None
    parallel_tool_calls: bool | None = None
    # said by the client about itself; changes nothing
    metadata: Annotated[dict[str, str] | None, FailFast()] = None

    @property
    def callable_tools(self) -> dict[int, Tool]:
        """The tools that may be called, by their places among all."""
        tools, choice = self.tools or [], self.tool_choice
        if choice is not None and choice.mode == "none":
            return {}
        names = None if choice is None else choice.names
        return {
            place: tool for place, tool in enumerate(tools) if names is None or tool.function.name in names
        }

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice is not None and self.tool_choice.mode == "required"

    @property
    def may_call_more(self) -> bool:
        """Whether an answer may hold several calls."""
        is_one = self.tool_choice is not None and self.tool_choice.is_one
        return self.parallel_tool_calls is not False and not is_one

    @property
    def holding_fields(self) -> list[str]:
        """See TextRequest."""
        strict = [place for place, tool in self.callable_tools.items() if tool.function.strict]
        fields = [*self.structure_fields, *(f"tools.{place}.function.strict" for place in strict)]
        if self.must_call:
            fields.append("tool_choice")
        return fields if self.thinking_token_budget is None else [*fields, "thinking_token_budget"]

    @property
    def token_limit(self) -> int | None:
        """See TextRequest."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_field(self) -> str:
        """See TextRequest."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_told(self) -> int | None:
        """See TextRequest."""
        return (self.top_logprobs or 0) if self.logprobs else None
