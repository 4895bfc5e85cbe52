"""A server with a database, shared by the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.fakes import ByteTokenizer, ScriptedEngine
from tests.gateway.stored import Stored, fresh_prompts, stored_server


@pytest.fixture(scope="module")
def stored_module(
    shared_engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stored]:
    path = tmp_path_factory.mktemp("stored") / "stemma.sqlite3"
    waits = {"turn_wait_seconds": 0.3, "change_wait_seconds": 0.3}
    with stored_server(shared_engine, fresh_prompts(tokenizer), path, waits) as stored:
        yield stored


@pytest.fixture
def stored(stored_module: Stored, engine: ScriptedEngine) -> Stored:
    """The server, with the engine as if it were new."""
    return stored_module
