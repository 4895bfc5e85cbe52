"""Fields that are known and not served, and fields that are known and change nothing.

A field that would change the answer is refused by name, unless its value says nothing: null, or one of the
values listed beside it. A hint is accepted and ignored. docs/api.md shows both tables to the user.
"""

import json
from collections.abc import Mapping

from gateway.errors import InvalidRequest

__all__ = ["CHAT_HINTS", "COMPLETION_HINTS", "UNSERVED_CHAT", "UNSERVED_COMPLETIONS", "refuse_unserved"]

Unserved = Mapping[str, tuple[object, ...]]  # by field, the values that say nothing

# extensions of other servers
_EXTENSIONS: Unserved = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
}

UNSERVED_CHAT: Unserved = {
    # the protocol's own
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # extensions of other servers
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    **_EXTENSIONS,
}

UNSERVED_COMPLETIONS: Unserved = {
    "suffix": ("",),
    # of chat, where they mean something
    "max_completion_tokens": (),
    "session_id": (),
    "store": (False,),
    "thinking_token_budget": (),
    "tools": ([],),
    "top_logprobs": (),
    # extensions of other servers
    "add_special_tokens": (True,),
    "prompt_embeds": (),
    **_EXTENSIONS,
}

# what took the place of a field
_SUCCESSORS = {"function_call": "tool_choice", "functions": "tools"}

_HINTS = ("safety_identifier",)
CHAT_HINTS = frozenset({*UNSERVED_CHAT, *_HINTS})
COMPLETION_HINTS = frozenset({*UNSERVED_COMPLETIONS, *_HINTS, "metadata", "parallel_tool_calls"})


def refuse_unserved(fields: Mapping[str, object], unserved: Unserved) -> None:
    """Raise InvalidRequest for the first field that would change the answer and is not served."""
    for name, silent_values in unserved.items():
        value = fields.get(name)
        if value is None or any(_equal(value, silent) for silent in silent_values):
            continue
        words = f"{name} is not served here{_instead(silent_values)}"
        if (successor := _SUCCESSORS.get(name)) is not None:
            words += f"; {successor} takes its place"
        raise InvalidRequest(f"{words}.", param=name, code="unsupported_parameter")


def _equal(value: object, silent: object) -> bool:
    # in Python False equals 0 and 1 equals True; on the wire they differ
    return value == silent and isinstance(value, bool) == isinstance(silent, bool)


def _instead(silent_values: tuple[object, ...]) -> str:
    if not silent_values:
        return "; leave it out"
    return f"; leave it out or send {' or '.join(json.dumps(value) for value in silent_values)}"
