"""What a chat completion looks like on the wire, whole and in chunks.

Fields that the protocol sets to null are null here; fields that it leaves out are UNSET. `created` and `id`
are the same in every chunk of an answer.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.wire.cache_answers import CacheExplanation
from gateway.wire.cache_diagnostics import Diagnostics
from gateway.wire.form import FinishReason
from gateway.wire.logprobs import ChoiceLogprobs, PromptLogprobs
from gateway.wire.usage import Usage

__all__ = [
    "CalledFunction",
    "ChatChoice",
    "ChatChunk",
    "ChatCompletion",
    "ChatMessage",
    "ChunkChoice",
    "Delta",
    "ToolCall",
    "ToolCallDelta",
]


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Which function is called, and with what. In a stream the name comes once, arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call, whole."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a call: id and type come once."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True):
    """The answer. Its content is null where it is nothing but calls. Reasoning has two names."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # when asked for
    cache: CacheExplanation | UnsetType = UNSET  # when asked for
    prompt_cache_diagnostics: Diagnostics | UnsetType = UNSET  # when asked for


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """News of one answer."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. `usage` is UNSET unless asked for, and null until the last chunk; `cache` comes
    once, if asked for: in the last chunk.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    cache: CacheExplanation | UnsetType = UNSET
    prompt_cache_diagnostics: Diagnostics | UnsetType = UNSET
