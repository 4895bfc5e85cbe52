"""The bodies of requests about tokens, and their answers. Types are strict."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, FailFast, Field

from gateway.wire.limits import MAX_MESSAGES
from gateway.wire.messages import Message
from gateway.wire.tool_fields import ToolsField

__all__ = ["Detokenize", "Detokenized", "Rendered", "Tokenize", "Tokenized"]


class Tokenize(BaseModel):
    """POST /tokenize: text, or a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message] | None, FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)] = None
    add_special_tokens: bool | None = None  # of a prompt: the beginning-of-text token
    # of messages
    add_generation_prompt: bool | None = None
    tools: ToolsField = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Detokenize(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a text, and how many the model takes."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET  # when asked for


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    prompt: str


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt that a chat request makes."""

    object: Literal["chat.completion.prompt"] = "chat.completion.prompt"
    model: str
    text: str  # special tokens are spelled
    prompt_token_ids: list[int]
    count: int
    max_model_len: int
