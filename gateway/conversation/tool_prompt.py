"""Tools, calls and their results for templates that do not know them, in the form of Hermes.

The system message, or the user's first, lists the tools and says how to call them, calls stand at the end of
what the assistant said, and results come as the user's messages. Invariant: a call is written with the very
arguments that it was read with, so what the model wrote comes out again letter by letter.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["call_text", "with_results", "with_tools"]

_HEAD = (
    "You may call functions to help with the user's request. These are their signatures, as JSON:\n<tools>\n"
)
_TAIL = (
    "\n</tools>\nFor each function call, answer with its name and arguments as a JSON object:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <arguments-as-object>}\n</tool_call>'
)


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, takes_system: bool
) -> list[dict[str, Any]]:
    """Normalized messages with the tools in the system's, which stands first; in the user's first where the
    template takes no system message.
    """
    listed = _HEAD + "\n".join([json.dumps(tool, ensure_ascii=False) for tool in tools]) + _TAIL
    told = [dict(message) for message in messages]
    if told and told[0]["role"] in ("system", "developer"):
        before = told[0]["content"]
        return [{**told[0], "content": f"{before}\n\n{listed}" if before else listed}, *told[1:]]
    first = next((message for message in told if message["role"] == "user"), None)
    if takes_system or first is None:
        return [{"role": "system", "content": listed}, *told]
    first["content"] = f"{listed}\n\n{first['content']}"
    return told


def with_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Normalized messages with results as the user's: those that stand together in one message."""
    told: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result:
            told.append(dict(message))
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if was_result:
                told[-1]["content"] += "\n" + text
            else:
                told.append({"role": "user", "content": text})
        was_result = is_result
    return told


def call_text(call: Mapping[str, Any]) -> str:
    """A call as the model is asked to write it."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return json.dumps(call, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {_arguments(function)}}}\n</tool_call>'


def _arguments(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else json.dumps(arguments, ensure_ascii=False)
