"""The body of POST /v1/chat/completions.

It owns the fields' types; their ranges are in `limits`, what is refused by name in `unserved`. Types are
strict: "1" is not 1 and true is not a number. An explicit null equals leaving the field out.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from gateway.wire.cache_hints import CacheField, CacheHints
from gateway.wire.messages import Message

__all__ = ["ChatRequest", "StreamOptions"]


def _list_of_stops(stop: object) -> object:
    if isinstance(stop, str):
        return [stop]
    if stop is None or isinstance(stop, list):
        return stop
    raise PydanticCustomError("stop", "must be a string, an array of strings, or null")


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """A request whose fields have the right types; out of `parse_chat_request` they are in range too."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str
    messages: list[Message]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # how long, and where to stop
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_list_of_stops)] = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    # how to draw
    n: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # how to render and cache
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    cache_salt: str | None = None
    cache: CacheField = None
    session_id: str | None = None
    # said by the client about itself; changes nothing
    user: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def num_choices(self) -> int:
        """How many answers are wanted."""
        return self.n if self.n is not None else 1

    @property
    def cache_hints(self) -> CacheHints:
        """The wishes of the cache, none of them by default."""
        return self.cache if self.cache is not None else CacheHints()

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer; None when the client set none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
