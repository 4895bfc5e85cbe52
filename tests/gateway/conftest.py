"""A scripted engine behind a real server, shared by the tests of a run; each test writes its own script."""

from collections.abc import Iterator

import httpx
import pytest

from engine.errors import EngineStopping
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.described import HOOKS
from tests.live import LiveServer, live_server, scripted_services


@pytest.fixture(scope="session")
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture(scope="session")
def prompts(tokenizer: ByteTokenizer) -> Prompts:
    end = tokenizer.special_tokens["<|im_end|>"]
    return Prompts(TextModel(tokenizer, ChatTemplate(CHATML), (end,)), transcript_bytes=1 << 20)


@pytest.fixture(scope="session")
def shared_engine() -> ScriptedEngine:
    return ScriptedEngine([])


@pytest.fixture(scope="session")
def server(shared_engine: ScriptedEngine, prompts: Prompts) -> Iterator[LiveServer]:
    settings = Settings.model_validate(
        {"server": {"max_body_bytes": 1 << 20, "cors_origins": ["https://a.example"]}}
    )
    with live_server(scripted_services(shared_engine, prompts), settings) as live:
        yield live


@pytest.fixture
def engine(shared_engine: ScriptedEngine, tokenizer: ByteTokenizer) -> ScriptedEngine:
    """The shared engine as if it were new, with a short answer."""
    shared_engine.scripts = [Script([tokenizer.id_of(text) for text in ("Hello", ", ", "world")])]
    shared_engine.is_ready = True
    shared_engine.step_seconds = 0.0
    shared_engine.num_cached_tokens = 0
    shared_engine.logprob = -0.5
    shared_engine.logprobs = {}
    shared_engine.refusal = None
    shared_engine.failure = EngineStopping("stopping")
    shared_engine.report = None
    shared_engine.cache_failure = None
    shared_engine.cache_calls.clear()
    shared_engine.submits.clear()
    shared_engine.aborts.clear()
    return shared_engine


@pytest.fixture
def client(server: LiveServer, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    """Plain HTTP, for what an SDK would not send."""
    with httpx.Client(base_url=server.url, timeout=10, event_hooks=HOOKS) as http:
        yield http
