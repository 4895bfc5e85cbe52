"""Clients in JavaScript: each file of tests runs in a `node --test` of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.processes import Served

FOLDER = Path(__file__).parent / "node"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.mjs")))
def test_in_node(served: Served, name: str) -> None:
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", name],
        cwd=FOLDER,
        env={**os.environ, "BASE_URL": served.base_url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert "pass 0" not in done.stdout
