"""What conversations are kept in is for their owner's eyes."""

import stat
from pathlib import Path

from gateway.store.migrate import upgrade


def test_a_new_sqlite_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "stemma.sqlite3"

    upgrade(f"sqlite+aiosqlite:///{path}")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
