"""Rows of sessions: whose they are, in which order, and what a race leaves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from gateway.paging import Paging, UnknownCursor
from gateway.store.migrate import upgrade
from gateway.store.sessions import NewMessage, Session, SessionStore
from gateway.store.tables import Base
from tests.gateway.stored import open_fresh

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HELLO = NewMessage(json='{"role":"user","content":"hi"}')
ANSWER = NewMessage(json='{"role":"assistant","content":"x"}', token_ids=b"\x01\x00\x00\x00")


def session(number: int, tenant: str = "a", *, age: int = 0) -> Session:
    return Session(
        id=f"sess_{number:024}",
        tenant=tenant,
        model="m",
        namespace=tenant.encode() * 32,
        created_at=NOW + timedelta(seconds=age),
        updated_at=NOW,
        parent_id=None,
        metadata={"k": "v"},
        num_turns=0,
        num_messages=0,
    )


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    url = f"sqlite+aiosqlite:///{tmp_path / 'stemma.sqlite3'}"
    upgrade(url)
    return SessionStore(open_fresh(url))


async def test_what_was_stored_is_read_back(store: SessionStore) -> None:
    await store.create(session(1), [HELLO, ANSWER])

    found = await store.get("a", session(1).id)
    first, second = await store.history("a", session(1).id)

    assert found is not None
    assert (found.metadata, found.namespace, found.created_at) == ({"k": "v"}, b"a" * 32, NOW)
    assert found.num_messages == 2
    assert (first.position, first.message, first.token_ids) == (0, {"role": "user", "content": "hi"}, None)
    assert (second.position, second.token_ids, second.created_at) == (1, ANSWER.token_ids, NOW)


async def test_nothing_is_read_or_changed_for_another_tenant(store: SessionStore) -> None:
    mine = session(1)
    await store.create(mine, [HELLO])

    theirs = Session(**{name: getattr(mine, name) for name in Session.__slots__} | {"tenant": "b"})
    page = await store.messages("b", mine.id, after=None, limit=5, descending=False)

    assert await store.get("b", mine.id) is None
    assert await store.history("b", mine.id) == page.items == []
    assert (await store.page("b", Paging())).items == []
    assert not await store.append(theirs, [HELLO])
    assert not await store.delete("b", mine.id)
    assert not await store.fork(theirs, session(2, "b"), num_messages=1)
    assert await store.get("b", session(2).id) is None
    assert len(await store.history("a", mine.id)) == 1


async def test_of_two_turns_from_one_state_the_first_is_kept(store: SessionStore) -> None:
    await store.create(session(1), [HELLO])
    seen = await store.get("a", session(1).id)
    assert seen is not None

    outcomes = [await store.append(seen, [HELLO, ANSWER]) for _ in range(2)]

    again = await store.get("a", session(1).id)
    assert again is not None
    assert outcomes == [True, False]
    assert (again.num_turns, again.num_messages) == (1, 3)
    assert again.updated_at > NOW
    assert [each.position for each in await store.history("a", session(1).id)] == [0, 1, 2]


async def test_a_deleted_session_takes_no_turn_and_leaves_no_message(store: SessionStore) -> None:
    await store.create(session(1), [HELLO])
    seen = await store.get("a", session(1).id)
    assert seen is not None

    assert await store.delete("a", seen.id)

    assert not await store.append(seen, [HELLO])
    await store.create(session(1), [])
    assert await store.history("a", seen.id) == []


async def test_of_a_session_that_is_gone_no_fork_is_left(store: SessionStore) -> None:
    await store.create(session(1), [HELLO])
    source = await store.get("a", session(1).id)
    assert source is not None
    await store.delete("a", source.id)

    assert not await store.fork(source, session(2), num_messages=1)

    assert await store.get("a", session(2).id) is None


async def test_sessions_are_counted_by_tenant(store: SessionStore) -> None:
    for number, tenant in ((1, "a"), (2, "a"), (3, "b")):
        await store.create(session(number, tenant), [])

    assert [await store.num_sessions(tenant) for tenant in ("a", "b", "c")] == [2, 1, 0]


async def test_what_another_session_begins_with_too_is_shared(store: SessionStore) -> None:
    drawn_otherwise = NewMessage(json=ANSWER.json, token_ids=b"\x02\x00\x00\x00")
    await store.create(session(1), [HELLO, ANSWER, HELLO, ANSWER])
    await store.create(session(2), [HELLO, ANSWER, ANSWER, ANSWER])
    await store.create(session(3), [HELLO, drawn_otherwise, HELLO, ANSWER])
    await store.create(session(4), [ANSWER, ANSWER, HELLO, ANSWER])
    await store.create(session(6, "b"), [HELLO, ANSWER, HELLO, ANSWER])

    shared = [await store.num_shared_messages(session(number)) for number in (1, 2, 3, 4)]

    assert shared == [2, 2, 1, 0]


async def test_sessions_that_came_by_the_same_messages_in_other_ways_share_them(store: SessionStore) -> None:
    await store.create(session(1), [HELLO, ANSWER, HELLO, ANSWER])
    await store.create(session(2), [])
    for number in (2, 2):
        grown = await store.get("a", session(number).id)
        assert grown is not None
        assert await store.append(grown, [HELLO, ANSWER])
    source = await store.get("a", session(2).id)
    assert source is not None
    assert await store.fork(source, session(3), num_messages=3)

    shared = [await store.num_shared_messages(session(number)) for number in (1, 2, 3)]

    assert shared == [4, 4, 3]


async def test_pages_follow_the_time_of_creation_and_then_the_id(store: SessionStore) -> None:
    for number, age in ((3, 0), (1, 1), (2, 0), (4, 2)):
        await store.create(session(number, age=age), [])
    upwards = [session(number).id for number in (2, 3, 1, 4)]

    found = []
    after = None
    while True:
        page = await store.page("a", Paging(limit=1, order="asc", after=after))
        found += [each.id for each in page.items]
        if not page.has_more:
            break
        after = found[-1]
    downwards = await store.page("a", Paging(limit=3, order="desc", after=upwards[3]))

    assert found == upwards
    assert [each.id for each in downwards.items] == upwards[2::-1]
    assert not downwards.has_more
    with pytest.raises(UnknownCursor):
        await store.page("b", Paging(after=upwards[0]))


@pytest.mark.parametrize("table", Base.metadata.sorted_tables, ids=lambda table: table.name)
def test_postgresql_has_a_type_for_every_column(table: object) -> None:
    assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))
