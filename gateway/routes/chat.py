"""POST /v1/chat/completions: from the body to a running generation.

The order of the checks: whether the server serves, the body, the model's name, the text's length, ids and
ranges. Nothing reaches the engine before all have passed, and no byte of a stream is sent.
"""

import asyncio
import secrets
import time
from datetime import datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from engine.messages import Submit
from gateway.auth import principal_of
from gateway.choice import Choice
from gateway.conversation.prompt import Prompt
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.errors import ContextTooLong, EngineUnavailable, InvalidRequest
from gateway.generation import Generation
from gateway.record import RequestRecord, record_of
from gateway.services import Services
from gateway.streaming import event_stream
from gateway.whole import whole_answer
from gateway.wire.body import require_json
from gateway.wire.chat_request import ChatRequest
from gateway.wire.parse import parse_chat_request
from gateway.wire.sampling import answer_limit, to_sampling_params

__all__ = ["ChatRoute"]

_LONG_TEXT = 20_000  # characters


class ChatRoute:
    """The endpoint, with its collaborators."""

    def __init__(self, services: Services, *, ping_seconds: float) -> None:
        self.services = services
        self.ping_seconds = ping_seconds
        tokenizer = services.prompts.tokenizer
        self.max_token_bytes = max(len(tokenizer.decode_bytes(each)) for each in range(tokenizer.vocab_size))

    async def create(self, request: Request) -> Response:
        """Answer a chat request, whole or as a stream."""
        record = record_of(request)
        self.services.metrics.begin(record)
        record.tenant = tenant = principal_of(request).tenant
        self.services.lifecycle.require_serving()
        require_json(request.headers.get("content-type", ""))
        chat = self._parse(await request.body())
        generation = await self._prepare(chat, tenant, record)
        if chat.stream:
            return event_stream(generation, with_usage=chat.wants_usage_chunk, ping_seconds=self.ping_seconds)
        return await whole_answer(request, generation, with_logprobs=bool(chat.logprobs))

    def _parse(self, body: bytes) -> ChatRequest:
        chat, num_unknown = parse_chat_request(body)
        self.services.metrics.unknown_fields.inc(num_unknown)
        self.services.catalog.require(chat.model)
        if not self.services.engine.is_ready:
            raise EngineUnavailable("The model is not ready yet. Send the request again in a moment.")
        return chat

    async def _prepare(self, chat: ChatRequest, tenant: str, record: RequestRecord) -> Generation:
        """Render, check, and bind everything that the engine needs. Submits nothing."""
        services = self.services
        info = services.engine.info
        namespace = services.namespaces.of(tenant, chat.cache_salt)
        prompt = await self._render(chat, namespace)
        if not prompt.ids:
            raise InvalidRequest("The messages render to an empty prompt; send some text.", param="messages")
        sampling = to_sampling_params(
            chat,
            max_tokens=answer_limit(chat, info, len(prompt.ids)),
            vocab_size=info.vocab_size,
            end_token_ids=services.prompts.end_token_ids,
            fresh_seed=lambda: secrets.randbits(64),
        )
        submit = Submit(
            request_id=f"chatcmpl-{secrets.token_hex(12)}",
            prompt=prompt.ids.tobytes(),
            sampling=sampling,
            namespace=namespace,
            num_choices=chat.num_choices,
        )
        record.model, record.completion_id = services.catalog.name, submit.request_id
        record.prompt_tokens = len(prompt.ids)
        return Generation(
            services=services,
            submit=submit,
            prompt=prompt,
            record=record,
            choices=self._choices(chat),
            created=int(time.time()),
        )

    async def _render(self, chat: ChatRequest, namespace: bytes) -> Prompt:
        num_characters = sum(len(message.content or "") for message in chat.messages)
        self._refuse_hopeless_length(num_characters)
        render = partial(
            self.services.prompts.render,
            [message.for_template() for message in chat.messages],
            # transcripts are as private as the cache: a salt sets them apart too
            tenant=namespace.hex(),
            now=datetime.now(),
            add_generation_prompt=chat.add_generation_prompt is not False and not chat.continue_final_message,
            continue_final_message=bool(chat.continue_final_message),
        )
        try:
            # a long text would keep every other stream waiting; a short one is not worth a thread
            return await asyncio.to_thread(render) if num_characters > _LONG_TEXT else render()
        except ValueError as refusal:
            raise InvalidRequest(f"{refusal}"[:500], param="messages") from None

    def _refuse_hopeless_length(self, num_characters: int) -> None:
        """Refuse text that cannot fit whatever its tokens turn out to be, before it is tokenized."""
        limit = self.services.engine.info.max_request_tokens
        if num_characters // self.max_token_bytes >= limit:
            raise ContextTooLong(
                f"The messages have {num_characters:,} characters; the {limit:,} tokens of prompt and answer "
                "together cannot hold them. Shorten the messages.",
                param="messages",
            )

    def _choices(self, chat: ChatRequest) -> list[Choice]:
        stops = StopStrings(chat.stop or ())
        return [
            Choice(
                index,
                self.services.prompts.detokenizer(),
                StopMatcher(stops, bool(chat.include_stop_str_in_output)),
                min_tokens=chat.min_tokens or 0,
            )
            for index in range(chat.num_choices)
        ]
