"""The default model behind a running `stemma serve`, for tests that only a real model can pass."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.served import ServedModel, stemma_serve


@pytest.fixture(scope="session")
def live_server(default_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """The default model in float32, so that greedy answers are the same on every machine."""
    data = tmp_path_factory.mktemp("data")
    settings = {"STEMMA_ENGINE__DTYPE": "float32", "STEMMA_ENGINE__KV_BYTES": "256MiB"}
    with stemma_serve(default_model_path, data, **settings) as served:
        yield served


@pytest.fixture
def openai(live_server: ServedModel) -> Iterator[OpenAI]:
    """The real SDK, pointed at the server."""
    with OpenAI(base_url=f"{live_server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client
