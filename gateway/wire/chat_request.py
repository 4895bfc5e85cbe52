"""The body of POST /v1/chat/completions: what it has beside the fields of all requests for text."""

from typing import Annotated

from pydantic import FailFast

from gateway.wire.messages import Message
from gateway.wire.text_request import TextRequest

__all__ = ["ChatRequest"]


class ChatRequest(TextRequest):
    """A request whose fields have the right types; out of `parse_chat_request` they are in range too."""

    messages: Annotated[list[Message], FailFast()]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # how to render
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    session_id: str | None = None
    # said by the client about itself; changes nothing
    metadata: Annotated[dict[str, str] | None, FailFast()] = None

    @property
    def token_limit(self) -> int | None:
        """See TextRequest."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_field(self) -> str:
        """See TextRequest."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_told(self) -> int | None:
        """See TextRequest."""
        return (self.top_logprobs or 0) if self.logprobs else None
