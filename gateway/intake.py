"""What all endpoints for text do alike on the way from a body to a reply: who may ask, and what is submitted.

The order of the checks is the routes' own; nothing here reaches the engine.
"""

import asyncio
import secrets
from collections.abc import Sequence

from starlette.requests import Request

from engine.deep_threads import deep_thread
from engine.messages import Submit
from gateway.auth import principal_of
from gateway.choice import Choice
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.errors import InvalidRequest
from gateway.grammars import whole
from gateway.prefix_trace import trace_of
from gateway.reading import Reading
from gateway.record import RequestRecord, record_of
from gateway.reply import Reply
from gateway.services import Services
from gateway.wire.body import require_json
from gateway.wire.form import Head
from gateway.wire.sampling import answer_limit, to_sampling_params
from gateway.wire.structure import structure_part
from gateway.wire.text_request import TextRequest

__all__ = ["Intake"]


class Intake:
    """Lets requests for text in."""

    def __init__(self, services: Services, *, keeps_trace: bool) -> None:
        self._services = services
        self._grammars = deep_thread("grammars")  # reads what clients nest as deep as they like
        self._keeps_trace = keeps_trace  # names of prompts' blocks with their usage

    def admit(self, request: Request) -> RequestRecord:
        """Begin the record of a request. Raises EngineUnavailable while draining, UnsupportedMediaType."""
        self._services.metrics.begin(record_of(request))
        return self.let_in(request)

    def let_in(self, request: Request) -> RequestRecord:
        """The same for a request that is for no text: it is not counted as one."""
        record = record_of(request)
        record.tenant = principal_of(request).tenant
        self._services.lifecycle.require_serving()
        require_json(request.headers.get("content-type", ""))
        return record

    def accept(self, parsed: TextRequest, num_unknown: int) -> None:
        """Take a body that is in order. Raises NotFound for its model, EngineUnavailable."""
        self._services.metrics.unknown_fields.inc(num_unknown)
        self._services.catalog.require(parsed.model)
        self._services.require_engine()

    async def grammar(self, text: TextRequest, reading: Reading | None = None) -> str | None:
        """What every answer must follow, with what is read beside content. Raises InvalidRequest."""

        def work() -> str | None:
            part = structure_part(text)
            return part if reading is None else reading.constrain(part)

        if not text.holding_fields:
            return None
        part = await asyncio.get_running_loop().run_in_executor(self._grammars, work)
        return None if part is None else whole(part)

    def submit(
        self,
        text: TextRequest,
        prompt: bytes,
        *,
        request_id: str,
        namespace: bytes,
        prompt_field: str,
        persists: bool = False,
        grammar: str | None = None,
    ) -> Submit:
        """One prompt (packed int32 ids) with all that the request wishes. Raises InvalidRequest."""
        info = self._services.engine.info
        num_tokens = len(prompt) // 4
        if not num_tokens:
            raise InvalidRequest(f"{prompt_field} comes to no tokens; send some text.", param=prompt_field)
        sampling = to_sampling_params(
            text,
            max_tokens=answer_limit(text, info, num_tokens, prompt_field=prompt_field),
            vocab_size=info.vocab_size,
            end_token_ids=self._services.prompts.end_token_ids,
            fresh_seed=lambda: secrets.randbits(64),
            grammar=grammar,
        )
        return Submit(
            request_id=request_id,
            prompt=prompt,
            sampling=sampling,
            namespace=namespace,
            num_choices=text.num_run,
            queue_priority=text.priority or 0,
            is_side=text.cache_hints.is_side,
            persists=persists,
            priority=text.cache_hints.engine_priority,
        )

    def choices(
        self,
        text: TextRequest,
        *,
        first_index: int = 0,
        offset: int = 0,
        before: Sequence[int] = (),
        reading: Reading | None = None,
    ) -> list[Choice]:
        """Empty answers to one prompt. `offset` counts the characters told before each, and `before` are ids
        whose text they continue. Without a reading all their text is content.
        """
        stops = StopStrings(text.stop or ())
        choices = []
        for place in range(text.num_run):
            detokenizer = self._services.prompts.detokenizer()
            detokenizer.prime(before)
            matcher = StopMatcher(stops, bool(text.include_stop_str_in_output))
            index = first_index + place
            choices.append(
                Choice(
                    index,
                    detokenizer,
                    matcher,
                    min_tokens=text.min_tokens or 0,
                    offset=offset,
                    reader=None if reading is None else reading.reader(),
                    spellings={} if reading is None else reading.spellings,
                    is_empty=text.prewarms,
                )
            )
        return choices

    def head(self, reply: Reply) -> Head:
        """What every part of an answer says of it."""
        catalog = self._services.catalog
        return Head(
            id=reply.completion_id,
            created=reply.created,
            model=catalog.name,
            system_fingerprint=catalog.system_fingerprint,
        )

    def note(self, reply: Reply) -> None:
        """Put into the record what is known before the request runs."""
        record = reply.record
        record.model = self._services.catalog.name
        record.prompt_tokens = sum(len(each.prompt_ids) for each in reply.generations)
        submits = [each.submit for each in reply.generations]
        # a trace is one path, so a request with several prompts has none
        if self._keeps_trace and len(submits) == 1 and not submits[0].is_side:
            block_size = self._services.engine.info.block_size
            record.prefix_trace = trace_of(submits[0].namespace, submits[0].prompt, block_size)
