"""Fields that are known and not served, and fields that are known and change nothing.

A field that would change the answer is refused by name, unless its value says nothing: null, or one of the
values listed beside it. A hint is accepted and ignored. docs/api.md shows both tables to the user.
"""

import json
from collections.abc import Mapping

from gateway.errors import InvalidRequest

__all__ = ["HINTS", "UNSERVED", "refuse_unserved"]

UNSERVED: Mapping[str, tuple[object, ...]] = {
    # the protocol's own
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # extensions of other servers
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "echo": (False,),
    "grammar": ("",),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "regex": (),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}

HINTS = frozenset(
    {
        *UNSERVED,
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
    }
)


def refuse_unserved(fields: Mapping[str, object]) -> None:
    """Raise InvalidRequest for the first field that would change the answer and is not served."""
    for name, silent_values in UNSERVED.items():
        value = fields.get(name)
        if value is None or any(_equal(value, silent) for silent in silent_values):
            continue
        raise InvalidRequest(
            f"{name} is not served here{_instead(silent_values)}.", param=name, code="unsupported_parameter"
        )


def _equal(value: object, silent: object) -> bool:
    # in Python False equals 0 and 1 equals True; on the wire they differ
    return value == silent and isinstance(value, bool) == isinstance(silent, bool)


def _instead(silent_values: tuple[object, ...]) -> str:
    if not silent_values:
        return "; leave it out"
    return f"; leave it out or send {' or '.join(json.dumps(value) for value in silent_values)}"
