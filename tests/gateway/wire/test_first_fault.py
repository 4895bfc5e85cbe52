"""A body is looked through up to its first fault, however many it has: complaints are as dear as what they
are about.
"""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gateway.errors import InvalidRequest
from gateway.wire.chat_request import ChatRequest
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.session_requests import ForkSession, NewPrefix, NewSession, parse_body

MANY = 1000
MESSAGE = {"role": "user", "content": "a"}
CHAT: dict[str, Any] = {"model": "m", "messages": [MESSAGE]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "a"}
BAD_PAIRS: dict[str, Any] = {str(place): [] for place in range(MANY)}

FAULTS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    *[
        (kind, plain | {name: value}, name)
        for kind, plain in ((ChatRequest, CHAT), (CompletionRequest, COMPLETION))
        for name, value in (
            ("stop", [1] * MANY),
            ("stop_token_ids", ["1"] * MANY),
            ("logit_bias", BAD_PAIRS),
            ("cache", BAD_PAIRS),
        )
    ],
    (ChatRequest, CHAT | {"messages": [5] * MANY}, "messages"),
    (ChatRequest, CHAT | {"messages": [{}] * MANY}, "messages"),
    (ChatRequest, CHAT | {"messages": [MESSAGE | {"tool_calls": [5] * MANY}]}, "messages"),
    (ChatRequest, CHAT | {"messages": [MESSAGE | {"content": [5] * MANY}]}, "messages"),
    (ChatRequest, CHAT | {"metadata": BAD_PAIRS}, "metadata"),
    (CompletionRequest, COMPLETION | {"prompt": ["a", 5] * 50}, "prompt"),
    (NewSession, {"messages": [5] * MANY}, "messages"),
    (NewSession, {"metadata": BAD_PAIRS}, "metadata"),
    (ForkSession, {"metadata": BAD_PAIRS}, "metadata"),
    (NewPrefix, {"messages": [5] * MANY}, "messages"),
]


@pytest.mark.parametrize(
    ("kind", "fields", "name"), FAULTS, ids=[f"{kind.__name__}-{name}" for kind, _, name in FAULTS]
)
def test_a_field_full_of_faults_is_one_complaint(
    kind: type[BaseModel], fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)

    (complaint,) = caught.value.errors()
    assert complaint["loc"][0] == name


def test_of_many_unknown_fields_the_first_is_named() -> None:
    body = b"{" + b",".join([b'"z%d":1' % place for place in range(MANY)]) + b"}"

    with pytest.raises(InvalidRequest, match="z0 is not known here") as caught:
        parse_body(body, NewSession)

    assert caught.value.param == "z0"
    assert caught.value.__context__ is None, "nobody complained of the others"
