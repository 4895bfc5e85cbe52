"""Figures for Prometheus: what the gateway counts itself, and the engine's own figures at a scrape.

Labels come from closed sets (routes, statuses, outcomes): nothing that a client or a tenant writes becomes
a label. Every instance has a registry of its own.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from engine.messages import EngineStats
from gateway.engine_metrics import EngineFamilies
from gateway.record import RequestRecord

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """All series of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self.http_requests = Counter(
            "stemma_http_requests", "Answered requests.", ("route", "method", "status"), registry=registry
        )
        self.received = Counter("stemma_generations_received", "Requests for text.", registry=registry)
        self.in_progress = Gauge(
            "stemma_generations_in_progress", "Requests for text, now.", registry=registry
        )
        self.ended = Counter(
            "stemma_generations_ended", "Requests for text, ended.", ("outcome",), registry=registry
        )
        self.choices = Counter("stemma_choices_finished", "Answers.", ("finish_reason",), registry=registry)
        self.unknown_fields = Counter("stemma_unknown_fields", "Ignored request fields.", registry=registry)
        self.session_turns = Counter("stemma_session_turns", "Turns of sessions, stored.", registry=registry)
        self.volatile_prompts = Counter(
            "stemma_volatile_prompts",
            "Prompts whose beginning changes a little with each request, so that nothing after is found.",
            registry=registry,
        )
        self.usage_dropped = Counter(
            "stemma_usage_rows_dropped", "Rows of usage not written.", registry=registry
        )
        self.ttft = _histogram("time_to_first_token_seconds", "From request to first token.", registry)
        self.inter_token = _histogram("inter_token_latency_seconds", "Between tokens of a choice.", registry)
        self.latency = _histogram("request_latency_seconds", "From request to last token.", registry)
        self.prompt_lengths = _histogram("request_prompt_tokens", "Tokens of a prompt.", registry, _TOKENS)
        self.answer_lengths = _histogram(
            "request_generation_tokens", "Tokens of an answer.", registry, _TOKENS
        )

    def begin(self, record: RequestRecord) -> None:
        """Count a request for text that has come in. From now on received = ended + in progress."""
        record.is_generation = True
        self.received.inc()
        self.in_progress.inc()

    def observe(self, record: RequestRecord, now: float) -> None:
        """Count a request that has ended."""
        status = "none" if record.status is None else str(record.status)
        self.http_requests.labels(record.route, record.method, status).inc()
        if not record.is_generation:
            return
        self.in_progress.dec()
        self.ended.labels(record.outcome).inc()
        if record.first_token is not None:
            self.ttft.observe(record.first_token - record.started)
        if record.outcome == "completed":
            self.latency.observe(now - record.started)
            self.prompt_lengths.observe(record.prompt_tokens)
            self.answer_lengths.observe(record.completion_tokens)

    def render(self, engine: EngineStats | None) -> bytes:
        """The exposition; without the engine's figures while there is no engine."""
        return b"".join(generate_latest(registry) for registry in self._registries(engine))

    def samples(self, engine: EngineStats | None) -> list[dict[str, object]]:
        """The same figures as data: a name, labels and a value each."""
        return [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for registry in self._registries(engine)
            for family in registry.collect()
            for sample in family.samples
        ]

    def _registries(self, engine: EngineStats | None) -> list[CollectorRegistry]:
        if engine is None:
            return [self.registry]
        scrape = CollectorRegistry()
        scrape.register(EngineFamilies(engine))
        return [self.registry, scrape]


def _histogram(
    name: str, text: str, registry: CollectorRegistry, buckets: tuple[float, ...] = _SECONDS
) -> Histogram:
    return Histogram(f"stemma_{name}", text, buckets=buckets, registry=registry)
