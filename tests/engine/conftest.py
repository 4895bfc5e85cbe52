"""What the tests of the engine share: one real model, loaded once."""

from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import EngineConfig
from engine.runner import ModelRunner
from engine.scheduler import Limits
from gateway.conversation.prompt import Prompts, load_prompts
from tests.engine.answers import Alone, Answer, Fresh, ask


@pytest.fixture(scope="package")
def runner(default_model_path: Path) -> ModelRunner:
    config = EngineConfig(
        model=str(default_model_path), dtype="float32", kv_bytes=64 << 20, disk_folder="for a fingerprint"
    )
    return load_runner(config)


@pytest.fixture(scope="package")
def prompts(default_model_path: Path) -> Prompts:
    return load_prompts(default_model_path)


@pytest.fixture
def fresh(runner: ModelRunner) -> Fresh:
    """Makes cores whose caches are empty; the memory behind them keeps what others left there."""
    return lambda: EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8))


@pytest.fixture(scope="package")
def alone(runner: ModelRunner) -> Alone:
    """What a prompt is answered by an empty cache and without company; each is computed once."""
    known: dict[tuple[int, ...], Answer] = {}

    def answer(ids: list[int]) -> Answer:
        if tuple(ids) not in known:
            core = EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8))
            known[tuple(ids)] = ask(core, ids)
        return known[tuple(ids)]

    return answer
