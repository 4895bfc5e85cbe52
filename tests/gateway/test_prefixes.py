"""Shared prefixes: back on every engine that comes, and never kept once they were removed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine.cache_messages import Pinned
from engine.errors import EngineDied, RequestRefused
from gateway.prefixes import SharedPrefixes, keep_prefixes
from gateway.rendering import ChatRenderer
from gateway.services import Services
from gateway.store.migrate import upgrade
from gateway.store.prefixes import SharedPrefix
from gateway.store.usage import UsageLog
from tests.fakes import ByteTokenizer, Script, ScriptedEngine, engine_info
from tests.gateway.stored import fresh_prompts, open_fresh
from tests.live import scripted_services


def prefix(number: int, content: str = "Be brief.") -> SharedPrefix:
    return SharedPrefix(
        id=f"prefix_{number:024}",
        created_at=datetime.now(UTC),
        name=None,
        messages=[{"role": "system", "content": content}],
    )


@pytest.fixture
def own_engine() -> ScriptedEngine:
    return ScriptedEngine([Script([97])])


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite+aiosqlite:///{tmp_path / 'stemma.sqlite3'}"
    upgrade(address)
    return address


@pytest.fixture
def services(own_engine: ScriptedEngine, tokenizer: ByteTokenizer, url: str) -> Services:
    scripted = scripted_services(own_engine, fresh_prompts(tokenizer))
    return replace(scripted, usage=UsageLog(open_fresh(url), scripted.metrics.usage_dropped))


@pytest.fixture
def prefixes(services: Services) -> SharedPrefixes:
    return SharedPrefixes(services, ChatRenderer(services.prompts))


@asynccontextmanager
async def kept(services: Services, prefixes: SharedPrefixes) -> AsyncIterator[None]:
    """The keeper at work."""
    keeper = asyncio.create_task(keep_prefixes(services, prefixes, poll_seconds=0.005))
    try:
        yield
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_prefixes_come_back_to_every_engine(
    services: Services, prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    await prefixes.store.add(prefix(1))
    await prefixes.store.add(prefix(2, "Be kind."))
    own_engine.is_ready = False

    async with kept(services, prefixes):
        await asyncio.sleep(0.02)
        asked_too_early = list(own_engine.submits)
        own_engine.is_ready = True
        await until(lambda: len(own_engine.calls_of("pin")) == 2)
        own_engine.info = engine_info()
        await until(lambda: len(own_engine.calls_of("pin")) == 4)

    assert asked_too_early == []
    names = [call.arguments["name"] for call in own_engine.calls_of("pin")]
    assert names == [prefix(1).id, prefix(2).id] * 2
    assert [submit.prompt for submit in own_engine.submits] == [
        call.arguments["tokens"] for call in own_engine.calls_of("pin")
    ]


async def test_an_engine_that_dies_meanwhile_is_tried_again(
    services: Services, prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    await prefixes.store.add(prefix(1))
    own_engine.cache_failure = EngineDied("x")

    async with kept(services, prefixes):
        await until(lambda: len(own_engine.calls_of("pin")) >= 2)
        own_engine.cache_failure = None
        num_failed = len(own_engine.calls_of("pin"))
        await until(lambda: len(own_engine.calls_of("pin")) > num_failed)


async def test_a_prefix_that_cannot_be_kept_does_not_stop_the_others(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    await prefixes.store.add(prefix(1, "CANARY" * 1000))
    await prefixes.store.add(prefix(2))

    with capture_logs() as lines:
        await prefixes.restore()

    assert [call.arguments["name"] for call in own_engine.calls_of("pin")] == [prefix(2).id]
    (line,) = [line for line in lines if line["event"] == "prefix.not_kept"]
    assert (line["prefix"], line["reason"]) == (prefix(1).id, "ContextTooLong")
    assert "CANARY" not in repr(lines)


async def test_a_prefix_that_cannot_be_stored_is_let_go(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_prefix: SharedPrefix) -> None:
        raise OSError("no database")

    monkeypatch.setattr(prefixes.store, "add", fail)

    with pytest.raises(OSError, match="no database"):
        await prefixes.share(None, prefix(1).messages)

    (pinned,), (unpinned,) = own_engine.calls_of("pin"), own_engine.calls_of("unpin")
    assert unpinned.arguments["name"] == pinned.arguments["name"]
    assert len(own_engine.calls_of("forget")) == 1


async def test_a_prefix_that_the_engine_refuses_is_left(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    await prefixes.store.add(prefix(1))
    own_engine.scripts = [Script([], fail_after=0)]
    own_engine.failure = RequestRefused("too long for the pool")

    with capture_logs() as lines:
        await prefixes.restore()

    assert [line["reason"] for line in lines if line["event"] == "prefix.not_kept"] == ["RequestRefused"]


async def test_a_prefix_that_is_removed_while_it_is_computed_is_let_go(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prefixes.store.add(prefix(1))

    async def pin(name: str, namespace: bytes, tokens: bytes, seconds: float | None) -> Pinned:
        await prefixes.store.delete(name)
        return own_engine.pinned

    monkeypatch.setattr(ScriptedEngine, "pin", lambda _self, *arguments: pin(*arguments))
    await prefixes.restore()

    assert [call.arguments["name"] for call in own_engine.calls_of("unpin")] == [prefix(1).id]
    assert len(own_engine.calls_of("forget")) == 1
