"""What a completion looks like on the wire: one shape, whole and in chunks."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.wire.cache_answers import CacheExplanation
from gateway.wire.cache_diagnostics import Diagnostics
from gateway.wire.form import FinishReason
from gateway.wire.logprobs import CompletionLogprobs, PromptLogprobs
from gateway.wire.usage import Usage

__all__ = ["Completion", "CompletionChoice"]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers, or what a chunk adds to it. In chunks `finish_reason` is null until its end."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # when asked for


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one event of a stream. In streams `usage` is UNSET unless asked for, and null until
    the last chunk; `cache` comes once, if asked for: in the last chunk.
    """

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int  # seconds since 1970
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    cache: CacheExplanation | UnsetType = UNSET
    prompt_cache_diagnostics: Diagnostics | UnsetType = UNSET
