"""What the tools of a request must be, and what the fields about them demand of each other."""

import re
from collections.abc import Sequence

from gateway.errors import InvalidRequest
from gateway.wire.chat_request import ChatRequest
from gateway.wire.limits import at_most
from gateway.wire.tool_fields import Tool

__all__ = ["check_names", "check_tools"]

_MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_tools(chat: ChatRequest) -> None:
    """Raise InvalidRequest for the first field about tools that is wrong."""
    _check_choice(chat, check_names(chat.tools or []))


def check_names(tools: Sequence[Tool]) -> set[str]:
    """The names of some tools. Raises InvalidRequest for too many of them, and for a name that is none."""
    at_most(len(tools), _MAX_TOOLS, "tools", "tools")
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        name, path = tool.function.name, f"tools.{place}.function.name"
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{path} must be 1 to 64 letters, digits, _ and -.", param=path)
        if name in seen:
            raise InvalidRequest(f"{path} is the name of an earlier tool; give each its own.", param=path)
        seen.add(name)
    return seen


def _check_choice(chat: ChatRequest, names: set[str]) -> None:
    choice = chat.tool_choice
    if choice is None:
        return
    if choice.mode == "required" and not names:
        raise InvalidRequest(
            "tool_choice demands a call, and there are no tools; send some.", param="tool_choice"
        )
    if choice.names is not None and not choice.names:
        raise InvalidRequest("tool_choice allows no tools; name some of them.", param="tool_choice")
    if any(name not in names for name in choice.names or ()):
        raise InvalidRequest("tool_choice names a tool that is not among tools.", param="tool_choice")
    if chat.must_call and chat.continue_final_message:
        raise InvalidRequest(
            "continue_final_message is not served where tool_choice demands a call; leave one of them out.",
            param="continue_final_message",
        )
