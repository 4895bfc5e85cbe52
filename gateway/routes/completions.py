"""POST /v1/completions: from the body to a running reply.

The order of the checks: whether the server serves, the body, the model's name, then each prompt's ids, length
and ranges. Nothing reaches the engine before all have passed; all prompts are accepted by it, or none runs.
"""

import secrets
import time
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequest
from gateway.events import Pace
from gateway.explanation import explain_plain
from gateway.generation import Generation
from gateway.intake import Intake
from gateway.plain_prompts import PlainPrompts
from gateway.prompt_caching import PromptCaching
from gateway.record import RequestRecord
from gateway.reply import Reply
from gateway.services import Services
from gateway.streaming import event_stream
from gateway.whole import whole_answer
from gateway.wire.completion_form import CompletionForm
from gateway.wire.completion_request import CompletionRequest
from gateway.wire.parse import parse_completion_request
from gateway.wire.sampling import check_told

__all__ = ["CompletionsRoute"]


class CompletionsRoute:
    """The endpoint, with its collaborators."""

    def __init__(
        self, services: Services, *, intake: Intake, pace: Pace, caching: PromptCaching, max_waiting: int
    ) -> None:
        """`max_waiting` requests of a tenant may wait in the engine, where each prompt is one."""
        self.max_waiting = max_waiting
        self.services = services
        self.intake = intake
        self.prompts = PlainPrompts(services.prompts)
        self.pace = pace
        self.caching = caching

    async def create(self, request: Request) -> Response:
        """Answer one or several prompts, whole or as a stream."""
        record = self.intake.admit(request)
        asked, num_unknown = parse_completion_request(await request.body())
        self.intake.accept(asked, num_unknown)
        reply = await self._reply(asked, record)
        form = CompletionForm(
            self.intake.head(reply),
            self.services.prompts.spelling,
            num_top=asked.num_told,
            with_usage=asked.wants_usage_chunk,
        )
        if not asked.stream:
            return await whole_answer(
                request, reply, form, num_best=asked.num_choices, num_prompt_top=asked.prompt_logprobs
            )
        with ExitStack() as held:
            return await event_stream(
                reply, form, with_usage=asked.wants_usage_chunk, pace=self.pace, held=held
            )

    async def _reply(self, asked: CompletionRequest, record: RequestRecord) -> Reply:
        """Everything that the engine needs, checked. Submits nothing."""
        assert record.tenant is not None, "the request has been let in"
        if len(asked.prompt) > self.max_waiting:
            raise InvalidRequest(
                f"prompt has {len(asked.prompt):,} prompts, and only {self.max_waiting:,} may wait here; "
                "send fewer at once.",
                param="prompt",
            )
        namespace = self.services.namespaces.of(record.tenant, asked.cache_salt)
        made = await self.prompts.make(
            asked.prompt,
            self.services.engine.info,
            echo=bool(asked.echo),
            with_logprobs=asked.logprobs is not None,
        )
        check_told(asked, sum(len(prompt.ids) for prompt in made))
        grammar = await self.intake.grammar(asked)
        completion_id = f"cmpl-{secrets.token_hex(12)}"
        generations = []
        for place, prompt in enumerate(made):
            submit = self.intake.submit(
                asked,
                prompt.ids.tobytes(),
                request_id=f"{completion_id}-{place}",
                namespace=namespace,
                prompt_field="prompt",
                grammar=grammar,
            )
            choices = self.intake.choices(
                asked,
                first_index=place * asked.num_run,
                offset=len(prompt.echo.text) if prompt.echo is not None else 0,
                before=prompt.before,
            )
            generations.append(
                Generation(
                    submit=submit,
                    prompt_ids=prompt.ids,
                    choices=choices,
                    echo=prompt.echo,
                )
            )
        reply = Reply(
            services=self.services,
            record=record,
            completion_id=completion_id,
            generations=generations,
            created=int(time.time()),
            held_by=next(iter(asked.holding_fields), None),
            explain=explain_plain if asked.cache_hints.explain else None,
        )
        self.caching.bind(reply, asked)
        self.intake.note(reply)
        return reply
