"""The outermost layer of every request: its id, its one log line, its metrics, its row of usage, and what the
journal keeps of it.

A client's x-request-id is kept when it is short and plain, and replaced otherwise, so nothing forged
reaches a header or a log. The line is written when the last byte has been sent or the client has gone.
"""

import logging
import re
import secrets
import time

import structlog
from starlette.datastructures import MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.journal import Journal
from gateway.lifecycle import Lifecycle
from gateway.metrics import Metrics
from gateway.record import RequestRecord
from gateway.store.usage import UsageLog, UsageRow

__all__ = ["Observe"]

_PLAIN_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_PROBES = frozenset({"/health", "/ping", "/metrics", "/admin/metrics"})  # asked every few seconds by machines
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Observe:
    """Middleware: makes the record of a request and reports it."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, usage: UsageLog, lifecycle: Lifecycle, journal: Journal
    ) -> None:
        self.app = app
        self.journal = journal
        self.lifecycle = lifecycle
        self.metrics = metrics
        self.usage = usage
        self.log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(request_id=_request_id(scope))
        scope.setdefault("state", {})["record"] = record

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.request_id
                headers["openai-processing-ms"] = f"{record.total_ms(time.monotonic()):.0f}"
            await send(message)

        try:
            with self.lifecycle.answering():
                await self.app(scope, receive, stamped)
        except Exception:
            # answered further out, where nothing of the request is known
            record.status = record.status or 500
            raise
        finally:
            self._report(scope, record)

    def _report(self, scope: Scope, record: RequestRecord) -> None:
        now = time.monotonic()
        record.method = scope["method"] if scope["method"] in _METHODS else "other"
        if isinstance(route := scope.get("route"), Route):
            record.route = route.path
        self.metrics.observe(record, now)
        if record.completion_id is not None:
            self.usage.add(UsageRow.of(record, now))
            self.journal.add(record)
        is_routine = record.route in _PROBES and record.status == 200
        self.log.log(
            logging.DEBUG if is_routine else logging.INFO,
            "request.finished",
            id=record.request_id,
            tenant=record.tenant,
            model=record.model,
            route=record.route,
            status=record.status,
            outcome=record.outcome if record.is_generation else None,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens,
            finish_reason=record.finish_reason,
            ttft_ms=record.ttft_ms,
            total_ms=record.total_ms(now),
        )


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode("ascii") if _PLAIN_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
