"""The forms in which clients write messages, brought to the one form that chat templates read.

It owns roles and contents, not their rendering. Invariant: the content of every message that it returns is a
string, and nothing that a client left out appears in one as a word such as "None".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

__all__ = ["ArgumentForm", "Message", "normalize", "strings_of"]

Message = Mapping[str, Any]
ArgumentForm = Literal["any", "text", "data"]  # of calls, that a template takes

# by which templates ask for an earlier answer's reasoning; clients send one of the first two
_REASONING = ("reasoning_content", "reasoning", "thinking")
_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalize(
    messages: Sequence[Message],
    *,
    names_developer: bool,
    write_call: Callable[[Message], str] | None,
    arguments: ArgumentForm = "any",
) -> list[dict[str, Any]]:
    """Messages as a template wants them.

    Role `developer` becomes `system` for a template that does not name it. Tool calls keep their place, with
    arguments in a form that the template takes; where it would not know them they become text at the end of
    the content, as `write_call` writes each. Raises ValueError for any other role: templates build special
    tokens from roles, so a role is never free text.
    """
    return [_normalize(message, names_developer, arguments, write_call) for message in messages]


def strings_of(value: Any) -> list[str]:
    """Every string in JSON-like data, keys too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in (*value.keys(), *value.values()) for text in strings_of(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings_of(item)]
    return []


def _normalize(
    message: Message,
    names_developer: bool,
    arguments: ArgumentForm,
    write_call: Callable[[Message], str] | None,
) -> dict[str, Any]:
    known = {key: value for key, value in message.items() if value is not None}
    known["content"] = _text(message.get("content"))
    if (thought := known.get("reasoning_content") or known.get("reasoning")) is not None:
        known |= dict.fromkeys(_REASONING, thought)
    if known.get("role") not in _ROLES:
        raise ValueError(f"a message's role is one of {', '.join(_ROLES)}")
    if known["role"] == "developer" and not names_developer:
        known["role"] = "system"
    calls = known.pop("tool_calls", ())
    if calls and write_call is None:
        known["tool_calls"] = [_call(call, arguments) for call in calls]
    elif calls and write_call is not None:
        lines = [write_call(call) for call in calls]
        known["content"] = "\n".join([known["content"], *lines] if known["content"] else lines)
    return known


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join([part["text"] for part in content])


def _call(call: Message, form: ArgumentForm) -> dict[str, Any]:
    """A call with its arguments as a template takes them: clients send them as JSON text."""
    plain = {key: value for key, value in call.items() if value is not None}
    function = plain.get("function")
    if isinstance(function, Mapping):
        arguments = function.get("arguments")
        told = _as_text(arguments) if form == "text" else _as_data(arguments, only=form == "data")
        plain["function"] = {**function, "arguments": told}
    return plain


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _as_data(arguments: Any, *, only: bool) -> Any:
    """A JSON object as data; what is none as it is, or, if data is all that can be told, as the one argument
    of an object.
    """
    try:
        data = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        data = arguments
    if isinstance(data, dict):
        return data
    if only:
        return {"arguments": arguments} if arguments else {}
    return arguments
