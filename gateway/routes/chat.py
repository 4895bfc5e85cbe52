"""POST /v1/chat/completions: from the body to a running generation; and /render, which stops before it runs.

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

from gateway.breakpoints import End, find_ends
from gateway.briefings import Briefings
from gateway.choice import Choice
from gateway.conversation.briefing import Briefing
from gateway.conversation.prompt import Prompt
from gateway.conversation.volatile import VolatileWatch
from gateway.errors import ContextTooLong
from gateway.events import Pace
from gateway.explanation import Explainer
from gateway.generation import Generation
from gateway.intake import Intake
from gateway.journal import Journal
from gateway.prompt_caching import PromptCaching, num_written
from gateway.reading import Readings
from gateway.record import RequestRecord
from gateway.rendering import ChatRenderer
from gateway.reply import Reply
from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.sessions.service import Sessions
from gateway.sessions.turn import Turn
from gateway.streaming import event_stream
from gateway.whole import whole_answer
from gateway.wire.chat_form import ChatForm
from gateway.wire.chat_request import ChatRequest
from gateway.wire.messages import Message
from gateway.wire.parse import ParsedChat, parse_chat_request
from gateway.wire.sampling import check_told
from gateway.wire.tokens import Rendered

__all__ = ["ChatRoute"]


class ChatRoute:
    """The endpoint, with its collaborators."""

    def __init__(
        self,
        services: Services,
        *,
        intake: Intake,
        renderer: ChatRenderer,
        sessions: Sessions,
        journal: Journal,
        pace: Pace,
        caching: PromptCaching,
        readings: Readings,
        briefings: Briefings,
    ) -> None:
        self.services = services
        self.intake = intake
        self.renderer = renderer
        self.explainer = Explainer(renderer)
        self.readings = readings
        self.briefings = briefings
        self.sessions = sessions
        self.journal = journal
        self.caching = caching
        self.watch = VolatileWatch()
        self.pace = pace

    async def create(self, request: Request) -> Response:
        """Answer a chat request, whole or as a stream."""
        record = self.intake.admit(request)
        parsed = parse_chat_request(await request.body())
        chat = parsed.chat
        self.intake.accept(chat, parsed.num_unknown)
        with ExitStack() as held:
            turn = await self._turn(record, parsed, held)
            try:
                reply = await self._reply(chat, turn, record)
            except ContextTooLong as refusal:
                raise refusal if turn is None else await self.sessions.too_long(turn, refusal) from None
            self.intake.note(reply)
            if not reply.generations[0].submit.is_side:
                assert record.tenant is not None, "the request has been let in"
                self._watch(record.tenant, chat.messages if turn is None else turn.messages)
            form = ChatForm(
                self.intake.head(reply),
                self.services.prompts.spelling,
                num_top=chat.num_told,
                with_usage=chat.wants_usage_chunk,
            )
            if not chat.stream:
                return await whole_answer(request, reply, form, num_prompt_top=chat.prompt_logprobs)
            return await event_stream(
                reply, form, with_usage=chat.wants_usage_chunk, pace=self.pace, held=held
            )

    async def render(self, request: Request) -> Response:
        """The prompt that a chat request would make, checked as one. Nothing runs, and nothing is kept."""
        record = self.intake.let_in(request)
        parsed = parse_chat_request(await request.body())
        self.intake.accept(parsed.chat, parsed.num_unknown)
        with ExitStack() as held:
            turn = await self._turn(record, parsed, held)
            reply = await self._reply(parsed.chat, turn, record)
        ids = reply.generations[0].prompt_ids
        return json_response(
            Rendered(
                model=self.services.catalog.name,
                text=self.services.prompts.spelling.text_of_all(ids),
                prompt_token_ids=ids.tolist(),
                count=len(ids),
                max_model_len=self.services.engine.info.max_request_tokens,
            )
        )

    async def _turn(self, record: RequestRecord, parsed: ParsedChat, held: ExitStack) -> Turn | None:
        """The session's next turn, if the request names a session; `held` lets it go."""
        session_id = parsed.chat.session_id
        if session_id is None:
            return None
        model = self.services.catalog.name
        assert record.tenant is not None, "the request has been let in"
        turn = await self.sessions.begin_turn(record.tenant, session_id, model, parsed.messages)
        held.enter_context(turn.hold)
        return turn

    async def _reply(self, chat: ChatRequest, turn: Turn | None, record: RequestRecord) -> Reply:
        """Render, check, and bind everything that the engine needs. Submits nothing."""
        services = self.services
        assert record.tenant is not None, "the request has been let in"
        messages = chat.messages if turn is None else turn.messages
        namespace = (
            services.namespaces.of(record.tenant, chat.cache_salt) if turn is None else turn.session.namespace
        )
        self.renderer.refuse_hopeless_length(messages, services.engine.info.max_request_tokens)
        briefing = self.briefings.of(chat.tools, chat.chat_template_kwargs, effort=chat.reasoning_effort)
        prompt = await self.renderer.render(
            messages,
            namespace,
            add_generation_prompt=chat.add_generation_prompt is not False and not chat.continue_final_message,
            continue_final_message=bool(chat.continue_final_message),
            drawn=None if turn is None else turn.history.drawn,
            briefing=briefing,
        )
        if turn is not None:
            turn.briefing = briefing
        check_told(chat, len(prompt.ids))
        reading = self.readings.of(chat, prompt)
        grammar = await self.intake.grammar(chat, reading)
        completion_id = f"chatcmpl-{secrets.token_hex(12)}"
        submit = self.intake.submit(
            chat,
            prompt.ids.tobytes(),
            request_id=completion_id,
            namespace=namespace,
            prompt_field="messages",
            persists=turn is not None,
            grammar=grammar,
        )
        explain = partial(
            self.explainer.explain, prompt=prompt, messages=messages, namespace=namespace, briefing=briefing
        )

        def remember(choice: Choice) -> None:
            services.prompts.record(prompt, choice.written, choice.token_ids)

        reply = Reply(
            services=services,
            record=record,
            completion_id=completion_id,
            generations=[
                Generation(
                    submit=submit, prompt_ids=prompt.ids, choices=self.intake.choices(chat, reading=reading)
                )
            ],
            created=int(time.time()),
            remember=remember,
            turn=turn,
            held_by=next(iter(chat.holding_fields), None),
            explain=explain if chat.cache_hints.explain else None,
        )
        self.caching.bind(reply, chat, await self._ends(chat, turn, prompt, namespace, briefing))
        return reply

    async def _ends(
        self, chat: ChatRequest, turn: Turn | None, prompt: Prompt, namespace: bytes, briefing: Briefing
    ) -> list[End]:
        """Of the beginnings that the request's own messages mark."""
        history = [] if turn is None else turn.history.messages
        return await find_ends(
            self.renderer,
            prompt,
            [*history, *chat.messages],
            namespace=namespace,
            num_before=len(history),
            num_latest=num_written(chat),
            briefing=briefing,
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
