"""POST /v1/chat/completions: from the body to a running generation.

The order of the checks: whether the server serves, the body, the model's name, the session, the text's
length, ids and ranges. Nothing reaches the engine before all have passed, and no byte of a stream is sent.
"""

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import structlog
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import Submit
from gateway.auth import principal_of
from gateway.choice import Choice
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.conversation.volatile import VolatileWatch
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.events import Pace
from gateway.explanation import Explainer
from gateway.generation import Generation
from gateway.journal import Journal
from gateway.prefix_trace import trace_of
from gateway.record import RequestRecord, record_of
from gateway.rendering import ChatRenderer
from gateway.services import Services
from gateway.sessions.service import Sessions
from gateway.sessions.turn import Turn
from gateway.streaming import event_stream
from gateway.whole import whole_answer
from gateway.wire.body import require_json
from gateway.wire.chat_request import ChatRequest
from gateway.wire.messages import Message
from gateway.wire.parse import ParsedChat, parse_chat_request
from gateway.wire.sampling import answer_limit, to_sampling_params

__all__ = ["ChatRoute"]


class ChatRoute:
    """The endpoint, with its collaborators."""

    def __init__(
        self,
        services: Services,
        *,
        renderer: ChatRenderer,
        sessions: Sessions,
        journal: Journal,
        pace: Pace,
        keeps_trace: bool,
    ) -> None:
        self.services = services
        self.renderer = renderer
        self.explainer = Explainer(renderer)
        self.sessions = sessions
        self.journal = journal
        self.watch = VolatileWatch()
        self.pace = pace
        self.keeps_trace = keeps_trace

    async def create(self, request: Request) -> Response:
        """Answer a chat request, whole or as a stream."""
        record = record_of(request)
        self.services.metrics.begin(record)
        record.tenant = principal_of(request).tenant
        self.services.lifecycle.require_serving()
        require_json(request.headers.get("content-type", ""))
        parsed = self._parse(await request.body())
        chat = parsed.chat
        with ExitStack() as held:
            turn = await self._turn(record.tenant, parsed, held)
            try:
                generation = await self._prepare(chat, turn, record)
            except ContextTooLong as refusal:
                raise refusal if turn is None else await self.sessions.too_long(turn, refusal) from None
            if not chat.stream:
                return await whole_answer(request, generation, with_logprobs=bool(chat.logprobs))
            return event_stream(
                generation,
                with_usage=chat.wants_usage_chunk,
                pace=self.pace,
                held=held.pop_all(),
            )

    def _parse(self, body: bytes) -> ParsedChat:
        parsed = parse_chat_request(body)
        self.services.metrics.unknown_fields.inc(parsed.num_unknown)
        self.services.catalog.require(parsed.chat.model)
        self.services.require_engine()
        return parsed

    async def _turn(self, tenant: str, parsed: ParsedChat, held: ExitStack) -> Turn | None:
        """The session's next turn, if the request names a session; `held` lets it go."""
        session_id = parsed.chat.session_id
        if session_id is None:
            return None
        model = self.services.catalog.name
        turn = await self.sessions.begin_turn(tenant, session_id, model, parsed.messages)
        held.enter_context(turn.hold)
        return turn

    async def _prepare(self, chat: ChatRequest, turn: Turn | None, record: RequestRecord) -> Generation:
        """Render, check, and bind everything that the engine needs. Submits nothing."""
        services = self.services
        assert record.tenant is not None, "the request has been let in"
        info = services.engine.info
        messages = chat.messages if turn is None else turn.messages
        namespace = (
            services.namespaces.of(record.tenant, chat.cache_salt) if turn is None else turn.session.namespace
        )
        self.renderer.refuse_hopeless_length(messages, info.max_request_tokens)
        prompt = await self.renderer.render(
            messages,
            namespace,
            add_generation_prompt=chat.add_generation_prompt is not False and not chat.continue_final_message,
            continue_final_message=bool(chat.continue_final_message),
            drawn=None if turn is None else turn.history.drawn,
        )
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
            is_side=chat.cache_hints.is_side,
            persists=turn is not None,
            priority=chat.cache_hints.engine_priority,
        )
        record.model, record.completion_id = services.catalog.name, submit.request_id
        record.prompt_tokens = len(prompt.ids)
        if not submit.is_side:
            if self.keeps_trace:
                record.prefix_trace = trace_of(namespace, submit.prompt, info.block_size)
            self._watch(record.tenant, messages)
        explain = partial(self.explainer.explain, prompt=prompt, messages=messages, namespace=namespace)
        return Generation(
            services=services,
            submit=submit,
            prompt=prompt,
            record=record,
            choices=self._choices(chat),
            created=int(time.time()),
            turn=turn,
            explain=explain if chat.cache_hints.explain else None,
        )

    def _watch(self, tenant: str, messages: Sequence[Message]) -> None:
        """Tell the operator of prompts that change a little at their beginning each time."""
        told = [(message.role, message.content or "") for message in messages]
        finding = self.watch.see(tenant, told, time.monotonic())
        if finding is None:
            return
        self.services.metrics.volatile_prompts.inc()
        if finding.is_news:
            self.journal.warn(finding)
            structlog.get_logger().warning(
                "prompt.volatile",
                tenant=tenant,
                message=finding.message,
                offset=finding.offset,
                lost_characters=finding.num_lost_characters,
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
