"""What a client asks of the cache, over a real socket, and what it is told."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq

from engine.cache_messages import CacheEvent, CacheEvents
from engine.connection import _MAX_UNREAD, EngineConnection, _Watcher
from engine.core import CoreOptions, EngineCore
from engine.errors import EngineDied
from engine.messages import Submit, TokenEvent
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.service import EngineService
from prefix_cache.eviction import LeastRecentlyUsed
from prefix_cache.figures import Observed
from prefix_cache.learned import Learned
from prefix_cache.tokens import pack
from tests.engine.still_mover import StillMover, still_tiers
from tests.scripted import ScriptedRunner, emit, make_info

pytestmark = pytest.mark.anyio

ANN, BEN = b"a" * 32, b"b" * 32
PROMPT = list(range(40))
BLOCK_BYTES = 64


@pytest.fixture
def mover() -> StillMover:
    return StillMover()


@pytest.fixture
def core(mover: StillMover) -> EngineCore:
    info = make_info(kv_bytes=64 * BLOCK_BYTES, context_length=512)
    return EngineCore(
        ScriptedRunner(emit([], then=5), info=info),
        Limits(max_batch_tokens=64, max_sequences=8),
        tiers=still_tiers(mover, host=32, disk=32),
        options=CoreOptions(swap="always"),
    )


@pytest.fixture
def address(core: EngineCore, tmp_path: Path) -> Iterator[str]:
    address = f"ipc://{tmp_path}/engine.sock"
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    should_stop = threading.Event()
    thread = threading.Thread(target=EngineService(core, socket).run, args=(should_stop,))
    thread.start()
    yield address
    should_stop.set()
    thread.join()
    socket.close(linger=0)


@pytest.fixture
async def engine(address: str) -> AsyncIterator[EngineConnection]:
    connection = EngineConnection(address)
    await asyncio.wait_for(connection.ready(), 10)
    yield connection
    await connection.close()


async def say(
    engine: EngineConnection,
    tokens: list[int],
    *,
    namespace: bytes = ANN,
    persists: bool = True,
    is_side: bool = False,
) -> TokenEvent:
    """A whole request of one token; returns its first event."""
    message = Submit(
        request_id=f"r{tokens}",
        prompt=pack(tokens),
        sampling=SamplingParams(max_tokens=1),
        namespace=namespace,
        persists=persists,
        is_side=is_side,
    )
    (event,) = [event async for event in await engine.start([message])]
    return event


async def test_a_request_is_told_where_its_prompt_came_from(engine: EngineConnection) -> None:
    cold = await say(engine, PROMPT)
    warm = await say(engine, [*PROMPT, 77, 78])

    assert cold.cache is not None
    assert (cold.cache.reason, cold.cache.num_computed_tokens) == ("empty", 40)
    assert warm.cache is not None
    assert (warm.cache.reason, warm.cache.parted_at) == ("new", 40)
    assert (warm.cache.num_device_tokens, warm.cache.num_computed_tokens) == (40, 2)


async def test_a_prefix_is_located_in_every_tier(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    await say(engine, [*PROMPT[:16], 99, 98])
    await engine.settle()

    residency = await engine.locate(ANN, pack([*PROMPT, 77]))

    assert residency.num_tokens == 41
    device = residency.tiers["device"]
    assert (device.num_tokens, device.num_blocks, device.num_shared_blocks) == (40, 3, 1)
    assert (device.num_bytes, device.num_shared_bytes) == (3 * BLOCK_BYTES, BLOCK_BYTES)
    assert residency.tiers["disk"].num_tokens == residency.tiers["host"].num_tokens == 40
    assert (await engine.locate(BEN, pack(PROMPT))).tiers["device"].num_tokens == 0


async def test_parking_is_answered_when_all_is_written(engine: EngineConnection, mover: StillMover) -> None:
    await say(engine, PROMPT)
    mover.is_stuck = True
    parking = asyncio.create_task(engine.park(ANN, pack([*PROMPT, 77])))
    await engine.stats()
    assert not parking.done()

    mover.is_stuck = False
    moved = await asyncio.wait_for(parking, 10)

    assert (moved.num_device_tokens, moved.num_parked_tokens, moved.message) == (40, 40, None)
    assert (await engine.locate(ANN, pack(PROMPT))).tiers["device"].num_tokens == 0


async def test_a_parked_prefix_is_brought_back_before_it_is_asked_for(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))

    moved = await engine.prefetch(ANN, pack([*PROMPT, 77]))

    assert (moved.num_device_tokens, moved.num_host_tokens, moved.num_to_compute) == (0, 40, 1)
    assert (moved.num_moved_blocks, moved.num_moved_bytes) == (3, 3 * BLOCK_BYTES)
    warm = await say(engine, [*PROMPT, 77])
    assert warm.cache is not None
    assert warm.cache.num_device_tokens == 40


async def test_a_request_resumes_what_was_parked(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))

    warm = await say(engine, [*PROMPT, 77])

    assert warm.num_cached_tokens == 40
    assert warm.cache is not None
    assert (warm.cache.num_device_tokens, warm.cache.num_host_tokens) == (0, 40)
    assert (await engine.stats()).num_promoted_tokens == 40


async def test_a_promotion_that_fails_is_computed_instead(
    engine: EngineConnection, mover: StillMover, capsys: pytest.CaptureFixture[str]
) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))
    mover.fails_with = "no such luck"

    warm = await say(engine, [*PROMPT, 77])

    assert warm.cache is not None
    assert (warm.num_cached_tokens, warm.cache.num_computed_tokens) == (0, 41)
    assert "a move from host to device ended early: no such luck" in capsys.readouterr().err


async def test_a_disk_that_takes_nothing_more_is_not_written_to_again(
    engine: EngineConnection, mover: StillMover
) -> None:
    mover.is_disk_usable = False
    await say(engine, PROMPT)
    await engine.settle()
    num_submitted = len(mover.submitted)

    moved = await engine.park(ANN, pack(PROMPT))

    assert moved.message is not None
    assert "takes nothing more" in moved.message
    assert len(mover.submitted) == num_submitted
    assert not (await engine.stats()).is_disk_usable


async def test_rates_follow_what_moves_take(engine: EngineConnection, mover: StillMover) -> None:
    before = (await engine.stats()).rates["host>device"]
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))

    await say(engine, [*PROMPT, 77])

    assert (await engine.stats()).rates["host>device"] < before


async def test_the_prefill_rate_is_learned_from_large_steps(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    assert "prefill" not in (await engine.stats()).rates

    await say(engine, list(range(100, 200)))

    assert (await engine.stats()).rates["prefill"] > 0


async def test_what_cannot_be_read_ends_nobodys_request(
    engine: EngineConnection, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(address)
    socket.send(b"\xc1 no message")

    event = await say(engine, PROMPT)
    assert event.finish_reason == "length"
    while "the engine was sent what it cannot read" not in capsys.readouterr().err:
        await engine.stats()

    socket.close(linger=0)


async def test_a_watcher_that_does_not_keep_up_is_told_what_it_has_lost() -> None:
    watcher = _Watcher()
    event = CacheEvent(kind="committed", tier="device", namespace=ANN, start=0, num_tokens=16)
    for _ in range(_MAX_UNREAD + 5):
        watcher.tell(CacheEvents([event]))

    told = [watcher.arrived.get_nowait() for _ in range(_MAX_UNREAD)]
    watcher.tell(CacheEvents([event]))

    assert all(isinstance(each, CacheEvents) and each.num_lost == 0 for each in told)
    assert watcher.arrived.get_nowait() == CacheEvents([event], 5)


async def test_others_run_while_a_conversation_loads(engine: EngineConnection, mover: StillMover) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))
    mover.is_stuck = True
    loading = asyncio.create_task(say(engine, [*PROMPT, 77]))
    while not (await engine.stats()).num_loading:
        pass

    await say(engine, [500, 501], namespace=BEN)

    assert not loading.done()
    mover.is_stuck = False
    assert (await asyncio.wait_for(loading, 10)).num_cached_tokens == 40


async def test_a_request_that_loads_can_be_aborted(
    engine: EngineConnection, mover: StillMover, core: EngineCore
) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))
    mover.is_stuck = True
    loading = asyncio.create_task(say(engine, [*PROMPT, 77]))
    while not (await engine.stats()).num_loading:
        pass

    loading.cancel()
    while (await engine.stats()).num_running:
        pass

    mover.is_stuck = False
    await engine.settle()
    assert core.cache.device.ledger.num_held == 0


async def test_forgetting_tells_what_became_free(engine: EngineConnection, mover: StillMover) -> None:
    await say(engine, PROMPT)
    await engine.settle()

    forgotten = await engine.forget(ANN, pack([*PROMPT, 77]), num_kept=16)

    assert forgotten.num_blocks == {"device": 2, "host": 2, "disk": 2}
    await say(engine, [500])
    assert len(mover.erased) == 2


async def test_what_is_forgotten_while_it_is_written_is_gone_when_the_copy_ends(
    engine: EngineConnection, mover: StillMover, core: EngineCore
) -> None:
    mover.is_stuck = True
    await say(engine, PROMPT)
    while not mover.submitted:
        await engine.stats()

    forgetting = asyncio.create_task(engine.forget(ANN, pack(PROMPT)))
    await engine.stats()
    assert not forgetting.done()
    mover.is_stuck = False
    await asyncio.wait_for(forgetting, 10)

    for tree in (core.cache.device, *core.cache.colder):
        assert tree.ledger.num_free == tree.num_blocks


async def test_pins_are_set_refused_and_ended(engine: EngineConnection) -> None:
    await say(engine, PROMPT)

    pinned = await engine.pin("p", ANN, pack([*PROMPT, 77]), 60.0)

    assert (pinned.num_tokens, pinned.num_blocks, pinned.message) == (40, 3, None)
    assert (await engine.stats()).num_pinned_blocks == 3
    await engine.unpin("p")
    assert (await engine.stats()).num_pinned_blocks == 0


async def test_a_pin_that_leaves_too_little_is_refused_with_the_reason(engine: EngineConnection) -> None:
    for start in range(0, 500, 100):
        await say(engine, list(range(start, start + 100)))
        refused = await engine.pin(f"p{start}", ANN, pack(range(start, start + 100)), None)

    assert refused.num_tokens == 0
    assert refused.message is not None
    assert "at most 32 may be" in refused.message


async def test_the_tree_is_listed_page_by_page(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    await say(engine, [*PROMPT[:16], 99, 98])

    first = await engine.nodes("device", 0, 2)
    assert len(first.nodes) == 2
    assert first.next is not None
    second = await engine.nodes("device", first.next, 2)

    assert second.next is None
    nodes = [*first.nodes, *second.nodes]
    assert sum(node.num_tokens for node in nodes) == 42
    assert len({node.serial for node in nodes}) == len(nodes)
    root = next(node for node in nodes if node.start == 0)
    assert {node.parent for node in nodes if node.start == 16} == {root.serial}
    assert (root.parent, root.num_tokens, root.num_children, root.namespace) == (0, 16, 2, ANN.hex())


async def test_a_page_of_a_tier_that_does_not_exist_is_empty(address: str, tmp_path: Path) -> None:
    core = EngineCore(ScriptedRunner(emit([], then=5)), Limits(max_batch_tokens=64, max_sequences=8))
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/other.sock")
    should_stop = threading.Event()
    thread = threading.Thread(target=EngineService(core, socket).run, args=(should_stop,))
    thread.start()
    connection = EngineConnection(f"ipc://{tmp_path}/other.sock")
    await asyncio.wait_for(connection.ready(), 10)

    assert (await connection.nodes("disk", 0, 10)).nodes == []
    moved = await connection.park(ANN, pack(PROMPT))
    assert moved.message == "there is no colder tier"

    await connection.close()
    should_stop.set()
    thread.join()
    socket.close(linger=0)


async def test_events_are_sent_to_who_watches(engine: EngineConnection, core: EngineCore) -> None:
    await say(engine, [300, 301])
    await engine.settle()
    told: list[CacheEvents] = []
    events = engine.cache_events()
    watching = asyncio.create_task(anext(events))
    while not core.cache.events.is_on:
        await asyncio.sleep(0)

    await say(engine, PROMPT)
    told.append(await asyncio.wait_for(watching, 10))
    while not any(event.kind == "demoted" for each in told for event in each.events):
        told.append(await asyncio.wait_for(anext(events), 10))

    (committed,) = [event for each in told for event in each.events if event.kind == "committed"]
    assert (committed.start, committed.num_tokens, len(committed.names)) == (0, 32, 2)
    assert committed.parent is None
    demoted = next(event for each in told for event in each.events if event.kind == "demoted")
    assert demoted.names[:2] == committed.names
    await events.aclose()
    while core.cache.events.is_on:
        await asyncio.sleep(0)


async def test_a_watcher_is_told_when_the_engine_has_gone(address: str) -> None:
    connection = EngineConnection(address)
    await asyncio.wait_for(connection.ready(), 10)
    events = connection.cache_events()
    watching = asyncio.create_task(anext(events))
    await connection.stats()

    await connection.close()

    with pytest.raises(EngineDied):
        await watching


async def test_figures_by_tier(engine: EngineConnection) -> None:
    await say(engine, PROMPT)
    await engine.settle()
    await engine.park(ANN, pack(PROMPT))

    stats = await engine.stats()

    assert set(stats.tiers) == {"device", "host", "disk"}
    assert stats.tiers["disk"].num_cached == 3
    assert stats.tiers["device"].num_cached == 0
    moves = {(move.source, move.target): move for move in stats.moves}
    assert moves["device", "disk"].num_blocks == 3
    assert moves["device", "disk"].seconds == 0.5
    assert stats.rates["disk>device"] == 1e8
    assert stats.is_disk_usable


async def test_the_policy_is_the_one_that_was_chosen() -> None:
    runner = ScriptedRunner(emit([], then=5))
    limits = Limits(max_batch_tokens=64, max_sequences=8)

    learned = EngineCore(runner, limits, options=CoreOptions(eviction="learned"))
    plain = EngineCore(runner, limits)

    assert isinstance(learned.cache.device.policy, Observed)
    assert isinstance(learned.cache.device.policy.inner, Learned)
    assert isinstance(plain.cache.device.policy.inner, LeastRecentlyUsed)


async def test_a_side_request_is_not_found_again(engine: EngineConnection) -> None:
    await say(engine, PROMPT, is_side=True)

    again = await say(engine, [*PROMPT, 77])

    assert again.num_cached_tokens == 0
