"""A scripted server over a database of its own, which may be stopped and started again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from engine.client import Engine
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.services import Services
from gateway.settings import Settings
from gateway.store.migrate import upgrade
from gateway.store.usage import UsageLog
from tests.fakes import ByteTokenizer
from tests.gateway.described import HOOKS
from tests.live import live_server, scripted_services

__all__ = ["ALICE", "BOB", "SESSIONS", "Stored", "bearer", "fresh_prompts", "open_fresh", "stored_server"]

SESSIONS = "/v1/sessions"
ALICE, BOB = "alice-alice-alice", "bob-bob-bob-bob-bob"

_KEYS = [
    {"key": ALICE, "tenant": "alice", "admin": True},
    {"key": BOB, "tenant": "bob"},
]


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"authorization": f"Bearer {key}"}


def fresh_prompts(tokenizer: ByteTokenizer) -> Prompts:
    """Prompts with empty transcripts, as after a restart."""
    end = tokenizer.special_tokens["<|im_end|>"]
    return Prompts(TextModel(tokenizer, ChatTemplate(CHATML), (end,)), transcript_bytes=1 << 20)


def open_fresh(url: str) -> AsyncEngine:
    """Connections that are closed after each use, whatever loop they were made in."""
    return create_async_engine(url, poolclass=NullPool)


@dataclass(frozen=True, slots=True)
class Stored:
    """A server, and its clients."""

    alice: httpx.Client  # an administrator
    bob: httpx.Client
    services: Services

    def new(self, **fields: Any) -> dict[str, Any]:
        """A session of alice's."""
        response = self.alice.post(SESSIONS, json=fields)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def messages(self, session_id: str) -> list[dict[str, Any]]:
        """What a session of alice's holds."""
        response = self.alice.get(f"{SESSIONS}/{session_id}/messages", params={"limit": 100})
        assert response.status_code == 200, response.text
        return [each["message"] for each in response.json()["data"]]


@contextmanager
def stored_server(
    engine: Engine,
    prompts: Prompts,
    path: Path,
    conversation: Mapping[str, float] | None = None,
    server: Mapping[str, float] | None = None,
) -> Iterator[Stored]:
    """Serve over the database at `path`, which is made if it is missing; the rest are settings."""
    url = f"sqlite+aiosqlite:///{path}"
    upgrade(url)
    services = scripted_services(engine, prompts)
    services = replace(services, usage=UsageLog(open_fresh(url), services.metrics.usage_dropped))
    settings = Settings.model_validate(
        {"keys": _KEYS, "conversation": conversation or {}, "server": server or {}}
    )
    with (
        live_server(services, settings) as live,
        httpx.Client(base_url=live.url, headers=bearer(ALICE), timeout=10, event_hooks=HOOKS) as alice,
        httpx.Client(base_url=live.url, headers=bearer(BOB), timeout=10, event_hooks=HOOKS) as bob,
    ):
        yield Stored(alice, bob, services)
