"""What a request for text does with the cache by the protocol's own fields.

It owns the reading of `prompt_cache_key`, `_options`, `_retention` and of breakpoints: what a request leaves
in the cache, what of it is kept for a time and under which name, and what an earlier request is compared
with. A wish that cannot be granted costs nothing but itself: the answer comes as if it had not been made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.messages import Submit
from engine.sequence import SamplingParams
from gateway.breakpoints import End
from gateway.cache_pins import CachePins, pin_name
from gateway.comparisons import Comparisons, Past, compare
from gateway.reply import CacheWork, Reply
from gateway.services import Services
from gateway.wire.cache_diagnostics import Diagnostics, Unavailable
from gateway.wire.prompt_cache import LIFETIMES, Ttl
from gateway.wire.text_request import TextRequest

__all__ = ["PromptCaching", "num_written"]

_MAX_WRITTEN = 4  # breakpoints of a request, the implicit one among them
_DEFAULT_TTL: Ttl = "30m"


def num_written(request: TextRequest) -> int:
    """How many of a request's own breakpoints count, the latest ones."""
    return _MAX_WRITTEN if request.cache_options.mode == "explicit" else _MAX_WRITTEN - 1


class PromptCaching:
    """Binds requests to the cache."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pins = CachePins(services.engine)
        self._comparisons = Comparisons()

    def bind(self, reply: Reply, request: TextRequest, ends: Sequence[End] = ()) -> None:
        """Give a reply that has not begun what its request wishes of the cache. `ends` are of its only
        prompt. Mutates the reply and its submits.
        """
        assert reply.record.tenant is not None, "the request has been let in"
        is_explicit = request.cache_options.mode == "explicit"
        for generation in reply.generations:
            generation.submit = _retained(generation.submit, request)
        first = reply.generations[0]
        num_kept = len(first.prompt_ids)
        if is_explicit or first.submit.is_side:
            num_kept = 0 if first.submit.is_side else max((end.num_tokens for end in ends), default=0)
            for generation in reply.generations:
                generation.submit = msgspec.structs.replace(generation.submit, is_side=True)
            if num_kept:
                reply.ahead = _beginning(first.submit, num_kept)
        wished: Mapping[Ttl, int] = _lifetimes(request, ends, num_kept, is_explicit=is_explicit)
        model = self._services.catalog.name
        reply.cache_work = _Work(
            reply=reply,
            pins=self._pins,
            comparisons=self._comparisons,
            tenant=reply.record.tenant,
            key=request.prompt_cache_key,
            lifetimes=wished if num_kept else {},
            past=Past.of(request, first.submit.prompt, num_kept, model),
            compared_id=request.cache_options.comparison_response_id,
        )


def _retained(submit: Submit, request: TextRequest) -> Submit:
    if request.prompt_cache_retention != "24h":
        return submit
    return msgspec.structs.replace(submit, persists=True)


def _beginning(submit: Submit, num_tokens: int) -> Submit:
    """What computes the beginning that is kept. The request that needs it waits for it in the engine."""
    return msgspec.structs.replace(
        submit,
        request_id=f"{submit.request_id}-ahead",
        prompt=submit.prompt[: 4 * num_tokens],
        sampling=SamplingParams(max_tokens=0),
        num_choices=1,
        is_side=False,
    )


def _lifetimes(
    request: TextRequest, ends: Sequence[End], num_kept: int, *, is_explicit: bool
) -> Mapping[Ttl, int]:
    """How many leading tokens of the prompt are to be kept for how long."""
    asked = request.cache_options.ttl
    longest: dict[Ttl, int] = {}
    for end in ends:
        ttl = end.ttl or asked or _DEFAULT_TTL
        longest[ttl] = max(longest.get(ttl, 0), end.num_tokens)
    if asked is not None and not is_explicit:
        longest[asked] = num_kept
    return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work(CacheWork):
    """What is done for one reply before its end is told."""

    reply: Reply
    pins: CachePins
    comparisons: Comparisons
    tenant: str
    key: str | None
    lifetimes: Mapping[Ttl, int]
    past: Past
    compared_id: str | None

    @property
    def compares(self) -> bool:
        """See CacheWork."""
        return self.compared_id is not None

    @property
    def keeps(self) -> bool:
        """See CacheWork."""
        return bool(self.lifetimes)

    def remember(self) -> None:
        """See CacheWork."""
        self.comparisons.add(self.tenant, self.reply.completion_id, self.past)

    def compared(self) -> Diagnostics:
        """See CacheWork."""
        assert self.compared_id is not None, "a comparison is asked for"
        report = self.reply.record.cache
        if report is None or report.reason == "bypassed":
            return Unavailable()
        earlier = self.comparisons.find(self.tenant, self.compared_id)
        return compare(earlier, self.past, self.reply.record.cached_tokens)

    async def keep(self) -> Mapping[Ttl, int]:
        """See CacheWork."""
        kept: dict[Ttl, int] = {}
        for place, generation in enumerate(self.reply.generations):
            submit = generation.submit
            for ttl, num_tokens in self.lifetimes.items():
                whole = len(generation.prompt_ids)
                ids = submit.prompt[: 4 * (num_tokens if len(self.reply.generations) == 1 else whole)]
                name = pin_name(submit.namespace, self.key, ttl, ids, place)
                kept[ttl] = kept.get(ttl, 0) + await self.pins.keep(
                    self.tenant, name, submit.namespace, ids, LIFETIMES[ttl]
                )
        return kept
