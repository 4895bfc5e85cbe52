"""One gateway for all clients, and a second one with room for a single request, for what full servers do."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.clients.processes import Served, gateway


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The gateway that all clients ask."""
    with gateway(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway where one request runs and one may wait."""
    settings = {
        "STEMMA_ENGINE__MAX_SEQUENCES": "1",
        "STEMMA_ENGINE__MAX_WAITING": "1",
        "STEMMA_SERVER__PING_SECONDS": "0.2",
    }
    with gateway(tmp_path_factory.mktemp("narrow"), **settings) as running:
        yield running


@pytest.fixture
def sdk(served: Served) -> Iterator[OpenAI]:
    """OpenAI's SDK as anybody makes it."""
    with OpenAI(base_url=served.base_url, api_key="unused") as client:
        yield client


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio."""
    return "asyncio"
