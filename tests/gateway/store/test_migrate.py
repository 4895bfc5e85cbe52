"""The schema: migrations lead to the tables of the code, and back."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic import command, op

from gateway.store.migrate import alembic_config, upgrade


def test_migrations_go_up_agree_with_the_tables_and_come_down(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'with % in it.sqlite3'}"
    config = alembic_config(url)

    command.upgrade(config, "head")
    command.check(config)
    command.downgrade(config, "base")
    upgrade(url)
    command.check(config)


def test_a_start_that_is_cut_off_leaves_the_schema_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.sqlite3"
    url = f"sqlite+aiosqlite:///{path}"
    command.upgrade(alembic_config(url), "0001")
    create_index = op.create_index

    def cut(name: str, *arguments: Any, **options: Any) -> None:
        if name == "ix_session_messages_prefix_digest":
            raise KeyboardInterrupt
        create_index(name, *arguments, **options)

    monkeypatch.setattr(op, "create_index", cut)
    with pytest.raises(KeyboardInterrupt):
        upgrade(url)
    monkeypatch.undo()
    left = tables(path)
    upgrade(url)

    assert left == {"alembic_version", "usage"}
    assert tables(path) >= {"sessions", "session_messages", "shared_prefixes"}


def test_of_two_gateways_that_start_at_once_one_migrates(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    script = f"from gateway.store.migrate import upgrade; upgrade('sqlite+aiosqlite:///{path}')"
    starts = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(2)]

    told = [start.communicate(timeout=60)[1].decode() for start in starts]

    assert [start.returncode for start in starts] == [0, 0], told
    assert "sessions" in tables(path)


def test_a_migration_waits_for_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("pragma journal_mode = wal")
    writer.execute("begin immediate")
    release = threading.Timer(0.3, lambda: writer.execute("rollback"))

    release.start()
    upgrade(f"sqlite+aiosqlite:///{path}")
    release.join()

    writer.close()
    assert "sessions" in tables(path)


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("select name from sqlite_master where type = 'table'")
        return {name for (name,) in found}
    finally:
        connection.close()
