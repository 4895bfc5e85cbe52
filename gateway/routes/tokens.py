"""POST /tokenize and /detokenize: text and conversations as the model's tokens, and back. Nothing runs."""

import asyncio
from array import array

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import principal_of
from gateway.briefings import Briefings
from gateway.errors import InvalidRequest
from gateway.rendering import ChatRenderer
from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.wire.body import require_json
from gateway.wire.session_requests import parse_body
from gateway.wire.tokens import Detokenize, Detokenized, Tokenize, Tokenized
from gateway.wire.tool_limits import check_names

__all__ = ["TokensRoute"]


class TokensRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services, renderer: ChatRenderer, briefings: Briefings) -> None:
        self.services = services
        self.renderer = renderer
        self.briefings = briefings

    async def tokenize(self, request: Request) -> Response:
        """The tokens of a text as a completion would have them, or of messages as chat would."""
        require_json(request.headers.get("content-type", ""))
        asked, _ = parse_body(await request.body(), Tokenize)
        self._require(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidRequest("Send either prompt or messages.", param="prompt")
        if asked.prompt is not None and (asked.tools or asked.chat_template_kwargs):
            name = "tools" if asked.tools else "chat_template_kwargs"
            raise InvalidRequest(f"{name} goes with messages; leave it out.", param=name)
        ids = await self._ids(asked, principal_of(request).tenant)
        spelling = self.services.prompts.spelling
        return json_response(
            Tokenized(
                count=len(ids),
                max_model_len=self.services.engine.info.max_request_tokens,
                tokens=ids.tolist(),
                token_strs=[spelling.text_of(each) for each in ids] if asked.return_token_strs else UNSET,
            )
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens; control tokens are spelled, and bytes that are no text become U+FFFD."""
        require_json(request.headers.get("content-type", ""))
        asked, _ = parse_body(await request.body(), Detokenize)
        self._require(asked.model)
        prompts = self.services.prompts
        for place, token_id in enumerate(asked.tokens):
            if not 0 <= token_id < prompts.vocab_size:
                raise InvalidRequest(
                    f"tokens.{place} is no token; this model's are 0 to {prompts.vocab_size - 1:,}.",
                    param=f"tokens.{place}",
                )
        return json_response(Detokenized(prompts.spelling.text_of_all(asked.tokens)))

    async def _ids(self, asked: Tokenize, tenant: str) -> "array[int]":
        if asked.messages is not None:
            check_names(asked.tools or [])
            prompt = await self.renderer.render(
                asked.messages,
                self.services.namespaces.of(tenant),
                add_generation_prompt=asked.add_generation_prompt is not False,
                briefing=self.briefings.of(asked.tools, asked.chat_template_kwargs),
            )
            return prompt.ids
        prompts, text = self.services.prompts, asked.prompt or ""
        if asked.add_special_tokens is False:
            return array("i", await asyncio.to_thread(prompts.tokenizer.encode, text))
        return await asyncio.to_thread(prompts.encode, text)

    def _require(self, model: str | None) -> None:
        if model is not None:
            self.services.catalog.require(model)
        self.services.require_engine()
