"""What a chat request tells the template beside its messages: its tools, and words such as `enable_thinking`.

A word that the template does not speak would change nothing, so it is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.conversation.briefing import NOTHING, Briefing
from gateway.errors import InvalidRequest
from gateway.reading import Readings
from gateway.wire.tool_fields import Tool

__all__ = ["Briefings"]

# by which templates ask whether to reason
_SWITCHES = ("enable_thinking", "thinking")
# told by fields of their own, or by the model
_TAKEN = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "strftime_now",
        "raise_exception",
    }
)
_EFFORT = "reasoning_effort"


class Briefings:
    """Of the requests to one model."""

    def __init__(self, asked: frozenset[str], readings: Readings) -> None:
        """`asked` are the names that the template asks for."""
        self._asked = asked
        self._has_reasoning = readings.has_reasoning

    def of(
        self, tools: Sequence[Tool] | None, words: Mapping[str, Any] | None, *, effort: str | None = None
    ) -> Briefing:
        """Raises InvalidRequest."""
        told = self._of_effort(effort) | self._checked(words or {})
        listed = [tool.for_template() for tool in tools or ()]
        return Briefing(listed, told) if listed or told else NOTHING

    def _of_effort(self, effort: str | None) -> dict[str, Any]:
        if effort is None:
            return {}
        told: dict[str, Any] = {_EFFORT: effort} if _EFFORT in self._asked else {}
        told |= {
            switch: effort != "none" for switch in _SWITCHES if switch in self._asked and self._has_reasoning
        }
        if not told and not (effort == "none" and not self._has_reasoning):
            raise InvalidRequest(
                f"reasoning_effort cannot be heeded: this model's template does not ask for it; leave it out"
                f"{'' if self._has_reasoning else ' or send none'}.",
                param=_EFFORT,
                code="unsupported_parameter",
            )
        return told

    def _checked(self, words: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in words.items():
            path = f"chat_template_kwargs.{name}"[:200]
            if name in _TAKEN:
                raise InvalidRequest(f"{path} is no word for a client to choose; leave it out.", param=path)
            if name not in self._asked:
                raise InvalidRequest(
                    f"{path} is no word of this model's template; leave it out.",
                    param=path,
                    code="unsupported_parameter",
                )
            if not isinstance(value, str | bool | int | float):
                raise InvalidRequest(f"{path} must be a string, a number, true or false.", param=path)
        return dict(words)
