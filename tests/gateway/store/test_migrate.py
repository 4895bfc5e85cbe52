"""The schema: migrations lead to the tables of the code, and back."""

from pathlib import Path

from alembic import command

from gateway.store.migrate import alembic_config, upgrade


def test_migrations_go_up_agree_with_the_tables_and_come_down(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'with % in it.sqlite3'}"
    config = alembic_config(url)

    command.upgrade(config, "head")
    command.check(config)
    command.downgrade(config, "base")
    upgrade(url)
    command.check(config)
