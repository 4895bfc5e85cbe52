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
from engine.errors import EngineDied, EngineError, RequestRefused
from gateway.errors import Conflict
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


async def test_a_prefix_that_is_kept_in_part_is_refused(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    own_engine.pinned = Pinned(ticket=0, num_tokens=16, num_blocks=1)

    with pytest.raises(Conflict, match="only 16 of its tokens") as refusal:
        await prefixes.share(None, prefix(1).messages)

    assert refusal.value.code == "pin_refused"
    assert await prefixes.store.all() == []
    assert [len(own_engine.calls_of(name)) for name in ("unpin", "forget")] == [1, 1]
    assert own_engine.calls_of("forget")[0].ids == own_engine.prompts[0]


async def test_a_prefix_whose_engine_fails_to_pin_it_is_let_go(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pin(*_arguments: object) -> Pinned:
        raise EngineError("x")

    monkeypatch.setattr(ScriptedEngine, "pin", pin)
    with pytest.raises(EngineError):
        await prefixes.share(None, prefix(1).messages)

    assert len(own_engine.calls_of("forget")) == 1


async def test_a_prefix_that_nobody_waits_for_any_more_is_let_go(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    own_engine.scripts = [Script([], stall_after=0)]
    sharing = asyncio.create_task(prefixes.share(None, prefix(1).messages))
    await until(lambda: own_engine.num_running == 1)

    sharing.cancel()
    await asyncio.wait((sharing,))

    assert sharing.cancelled()
    assert own_engine.num_running == 0
    assert len(own_engine.calls_of("forget")) == 1


async def test_an_engine_that_cannot_let_go_is_told_of_as_the_first_failure(
    prefixes: SharedPrefixes, own_engine: ScriptedEngine
) -> None:
    own_engine.cache_failure = EngineDied("x")

    with pytest.raises(EngineDied), capture_logs() as lines:
        await prefixes.share(None, prefix(1).messages)

    assert "prefix.not_forgotten" in [line["event"] for line in lines]


async def test_while_the_database_is_away_the_tries_become_rarer(
    services: Services, prefixes: SharedPrefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def fail() -> list[SharedPrefix]:
        raise OSError("no database")

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(prefixes.store, "all", fail)
    with capture_logs() as lines:
        async with kept(services, prefixes):
            monkeypatch.setattr(asyncio, "sleep", note)
            while len(pauses) < 9:
                await sleep(0)
            monkeypatch.undo()

    assert pauses[:9] == [0.005 * factor for factor in (2, 4, 8, 16, 32, 60, 60, 60, 60)]
    assert lines[0]["reason"] == "OSError"


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
        return Pinned(ticket=0, num_tokens=len(tokens) // 4)

    monkeypatch.setattr(ScriptedEngine, "pin", lambda _self, *arguments: pin(*arguments))
    await prefixes.restore()

    assert [call.arguments["name"] for call in own_engine.calls_of("unpin")] == [prefix(1).id]
    assert len(own_engine.calls_of("forget")) == 1
