"""Bringing a database to the newest schema.

Migrations run an event loop of their own, so this is called before the server's starts.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config

__all__ = ["alembic_config", "upgrade"]

_MIGRATIONS = Path(__file__).parents[2] / "migrations"


def alembic_config(url: str) -> Config:
    """Alembic's configuration for the database at `url`."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def upgrade(url: str) -> None:
    """Apply every migration that the database lacks."""
    command.upgrade(alembic_config(url), "head")
