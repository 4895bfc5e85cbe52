"""The table of all operations: what each takes, and what it answers with.

It owns no behaviour. A test holds it against the application's routes, and every answer of the tests of
routes against what it says.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec
from pydantic import BaseModel

from engine.cache_messages import NodeView
from gateway.journal import RequestEntry, WarningEntry
from gateway.wire.admin_answers import EventsAnswer
from gateway.wire.cache_answers import MoveAnswer
from gateway.wire.chat_request import ChatRequest
from gateway.wire.chat_response import ChatChunk, ChatCompletion
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.completion_response import Completion
from gateway.wire.models import Model, ModelList
from gateway.wire.operations_answers import Health, Index, Samples, Version
from gateway.wire.session_answers import Deleted, MessageAnswer, PinAnswer, PrefixAnswer, SessionAnswer
from gateway.wire.session_requests import ForkSession, NewPrefix, NewSession, PinSession
from gateway.wire.tokens import Detokenize, Detokenized, Rendered, Tokenize, Tokenized

__all__ = ["OPERATIONS", "Operation"]

Struct = type[msgspec.Struct]
Query = Literal["limit", "order", "after", "tier"]

_PAGE: tuple[Query, ...] = ("limit", "order", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method at one path. A place in the path is written `{id}`."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    body: type[BaseModel] | None = None
    needs_body: bool = True  # else an empty one is {}
    query: tuple[Query, ...] = ()
    answer: Struct | None = None  # JSON; None for a text, a stream or a list
    items: Struct | None = None  # of a list
    events: Struct | None = None  # the data of a stream's events
    text: str | None = None  # the media type of an answer that is no JSON
    errors: tuple[int, ...] = ()  # beside those that follow from the rest
    is_open: bool = False  # needs no key

    @property
    def name(self) -> str:
        """As `GET /` lists it."""
        return f"{self.method} {self.path}"

    @property
    def statuses(self) -> list[int]:
        """Every status that it may answer with, but for 200."""
        found = {*self.errors, 413, 500}
        found |= set() if self.is_open else {401}
        found |= {403} if self.path == "/metrics" or self.path.startswith("/admin") else set()
        found |= {400, 408, 415} if self.body is not None else set()
        found |= {400} if self.query else set()
        found |= {404} if "{id}" in self.path else set()
        return sorted(found)


_SESSION = "/v1/sessions/{id}"
_TEXT = (404, 409, 429, 503)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST", path="/v1/chat/completions", summary="An answer to a conversation.",
        body=ChatRequest, answer=ChatCompletion, events=ChatChunk, errors=_TEXT,
    ),
    Operation(
        method="POST", path="/v1/chat/completions/render", summary="The prompt that a chat request would be.",
        body=ChatRequest, answer=Rendered, errors=(404, 409, 503),
    ),
    Operation(
        method="POST", path="/v1/completions", summary="What follows a text.",
        body=CompletionRequest, answer=Completion, events=Completion, errors=_TEXT,
    ),
    Operation(
        method="POST", path="/tokenize", summary="A text's or a conversation's tokens.",
        body=Tokenize, answer=Tokenized, errors=(404, 503),
    ),
    Operation(
        method="POST", path="/detokenize", summary="The text of tokens.",
        body=Detokenize, answer=Detokenized, errors=(404, 503),
    ),
    Operation(method="GET", path="/v1/models", summary="The names of the model.", answer=ModelList),
    Operation(method="GET", path="/v1/models/{id}", summary="One name of the model.", answer=Model),
    Operation(
        method="POST", path="/v1/sessions", summary="A new session.",
        body=NewSession, needs_body=False, answer=SessionAnswer, errors=(404, 409, 503),
    ),
    Operation(
        method="GET", path="/v1/sessions", summary="A page of the tenant's sessions.",
        query=_PAGE, items=SessionAnswer, errors=(503,),
    ),
    Operation(
        method="GET", path=_SESSION, summary="A session, and where it lies.",
        answer=SessionAnswer, errors=(503,),
    ),
    Operation(
        method="DELETE", path=_SESSION, summary="Remove a session.", answer=Deleted, errors=(409, 503)
    ),
    Operation(
        method="GET", path=f"{_SESSION}/messages", summary="A page of a session's messages.",
        query=_PAGE, items=MessageAnswer, errors=(503,),
    ),
    Operation(
        method="POST", path=f"{_SESSION}/park", summary="Write a session to the coldest tier.",
        answer=MoveAnswer, errors=(400, 409, 503),
    ),
    Operation(
        method="POST", path=f"{_SESSION}/resume", summary="Bring a session back to the device.",
        answer=MoveAnswer, errors=(400, 409, 503),
    ),
    Operation(
        method="POST", path=f"{_SESSION}/fork", summary="A new session with a session's history.",
        body=ForkSession, needs_body=False, answer=SessionAnswer, errors=(409, 503),
    ),
    Operation(
        method="POST", path=f"{_SESSION}/pin", summary="Keep a session on the device for a time.",
        body=PinSession, answer=PinAnswer, errors=(409, 503),
    ),
    Operation(
        method="DELETE", path=f"{_SESSION}/pin", summary="End a session's pin.",
        answer=Deleted, errors=(503,),
    ),
    Operation(
        method="GET", path="/health", summary="Whether requests are served.", answer=Health, is_open=True
    ),
    Operation(
        method="GET", path="/ping", summary="Whether requests are served.", answer=Health, is_open=True
    ),
    Operation(method="GET", path="/version", summary="Which server this is.", answer=Version),
    Operation(
        method="GET", path="/metrics", summary="Figures in Prometheus' text format.", text="text/plain"
    ),
    Operation(method="GET", path="/admin/metrics", summary="The same figures as JSON.", answer=Samples),
    Operation(
        method="GET", path="/admin/cache", summary="A page of one tier's tree.",
        query=("tier", "limit", "after"), items=NodeView, errors=(503,),
    ),
    Operation(
        method="GET", path="/admin/cache/events", summary="What happens in the cache from now on.",
        events=EventsAnswer, errors=(503,),
    ),
    Operation(
        method="GET", path="/admin/requests", summary="How the cache served the last requests.",
        query=_PAGE, items=RequestEntry,
    ),
    Operation(
        method="GET", path="/admin/warnings", summary="Prompts that defeat the cache.",
        query=_PAGE, items=WarningEntry,
    ),
    Operation(
        method="POST", path="/admin/prefixes", summary="Share a beginning with all tenants.",
        body=NewPrefix, answer=PrefixAnswer, errors=(409, 503),
    ),
    Operation(
        method="GET", path="/admin/prefixes", summary="A page of the shared prefixes.",
        query=_PAGE, items=PrefixAnswer, errors=(503,),
    ),
    Operation(
        method="DELETE", path="/admin/prefixes/{id}", summary="Share a beginning no more.",
        answer=Deleted, errors=(503,),
    ),
    Operation(
        method="GET", path="/openapi.json", summary="This description, as OpenAPI.", text="application/json"
    ),
    Operation(method="GET", path="/docs", summary="This description, as a page.", text="text/html"),
    Operation(method="GET", path="/", summary="What is served here.", answer=Index, is_open=True),
)  # fmt: skip
