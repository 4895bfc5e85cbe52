"""What the tests of the engine's benches share: a tiny model of random weights, as it is served."""

import pytest

from benchmarks.bare import Served, fill_pool
from engine.loading import load_runner
from engine.messages import EngineConfig
from tests.engine.checkpoints import random_model, write_checkpoint


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """With matrices of 8 bits, so that its layers are one program that counts its cycles."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "max_position_embeddings": 512}
    folder = write_checkpoint(random_model("llama", **sizes), tmp_path_factory.mktemp("model"))
    runner = load_runner(EngineConfig(model=str(folder), products="int8", kv_bytes=1 << 20))
    fill_pool(runner.pool)
    return Served(runner, "int8", 1)
