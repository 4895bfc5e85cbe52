"""Bringing a database to the newest schema.

Migrations run an event loop of their own, so this is called before the server's starts.
"""

from contextlib import suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import make_url

__all__ = ["alembic_config", "upgrade"]

_MIGRATIONS = Path(__file__).parents[2] / "migrations"


def alembic_config(url: str) -> Config:
    """Alembic's configuration for the database at `url`."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def upgrade(url: str) -> None:
    """Apply every migration that the database lacks. A new SQLite file is its owner's alone."""
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite" and parts.database not in (None, "", ":memory:"):
        with suppress(OSError):  # the database itself says best why it cannot be used
            Path(str(parts.database)).touch(mode=0o600)
    command.upgrade(alembic_config(url), "head")
