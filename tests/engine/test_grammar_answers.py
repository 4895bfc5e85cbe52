"""Answers of a small real model that must follow a grammar: with proposals or without, beside others, on both
samplers.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from engine.connection import EngineConnection
from engine.constraints import Constraints
from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import Accepted, BeamParams, EngineConfig, Refused, Submit, TokenEvents
from engine.runner import ModelRunner
from engine.sampling.allowed import Allowed, forbid_others
from engine.sampling.device_sampler import DeviceSampler
from engine.sampling.host_sampler import HostSampler
from engine.sampling.sampler import Sampler
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.service import EngineService
from engine.speculation.length import LookaheadPolicy
from engine.vocabulary import Vocabulary, write_vocabulary
from kernels import Kernels
from prefix_cache.tokens import pack
from tests.engine.checkpoints import random_model, write_checkpoint

PROMPT = [7, 3, 9, 3, 9, 1, 44, 3, 9, 1, 60, 7, 3, 9, 3, 9, 1, 44, 3, 9, 1, 61, 2]
TEXTS = [chr(33 + token_id).encode() for token_id in range(94)] + [b"10", b"ab", b"", b"", b"", b"", b""]
END = 100
VOCABULARY = Vocabulary(
    tokens=TEXTS, control_names={i: f"<{i}>" for i in range(96, 101)}, end_token_ids=[END]
)
NUMBER = "start: /[1-9][0-9]{2,5}/"
# Ambiguous: what it costs to follow grows with the square of the answer's length.
COSTLY = 'start: e\ne: e e | "x" | "y" e | e "x" e'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(random_model("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary"
    write_vocabulary(VOCABULARY, path)
    return path


@pytest.fixture(scope="module", params=["off", "ngram", "draft"])
def runner(request: pytest.FixtureRequest, folder: Path, vocabulary: Path) -> ModelRunner:
    layers = 1 if request.param == "draft" else None
    return load(folder, vocabulary=str(vocabulary), speculation=request.param, draft_layers=layers)


@pytest.fixture
def core(runner: ModelRunner) -> EngineCore:
    return core_over(runner)


def load(folder: Path, **values: Any) -> ModelRunner:
    return load_runner(EngineConfig(model=str(folder), dtype="float32", kv_bytes=4_000_000, **values))


def core_over(runner: ModelRunner) -> EngineCore:
    lookahead = LookaheadPolicy(lambda _: 1e-3, max_tokens=4, proposal_seconds=0.0)
    limits = Limits(max_batch_tokens=64, max_sequences=8)
    return EngineCore(runner, limits, lookahead=lookahead, grammars=runner.grammars)


def ask(core: EngineCore, name: str, grammar: str | None, *, choices: int = 1, **values: Any) -> None:
    sampling = SamplingParams(
        **{"max_tokens": 30, "stop_token_ids": (END,), "seed": 5, "grammar": grammar, **values}
    )
    message = Submit(
        request_id=name, prompt=pack(PROMPT), sampling=sampling, namespace=b"t", num_choices=choices
    )
    assert isinstance(core.submit(message), Accepted)


def drain(core: EngineCore) -> tuple[dict[tuple[str, int], str], list[Refused]]:
    texts: dict[tuple[str, int], str] = {}
    refused: list[Refused] = []
    while core.has_work:
        core.tend()
        for message in core.step():
            if isinstance(message, Refused):
                refused.append(message)
                continue
            assert isinstance(message, TokenEvents)
            for event in message.events:
                key = event.request_id, event.choice
                said = b"".join(TEXTS[token_id] for token_id in event.token_ids).decode()
                texts[key] = (
                    texts.get(key, "") + said + (f" {event.finish_reason}" if event.finish_reason else "")
                )
        core.scheduler.check_invariants()
    assert core.cache.device.ledger.num_held == 0
    return texts, refused


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_choice_follows_the_grammar_and_ends_with_it(core: EngineCore, temperature: float) -> None:
    ask(core, "held", NUMBER, choices=4, temperature=temperature)
    ask(core, "free", None, temperature=temperature)

    texts, refused = drain(core)

    assert refused == []
    assert len(texts) == 5
    for choice in range(4):
        assert re.fullmatch(r"[1-9][0-9]{2,5} stop", texts["held", choice]), texts


def test_those_beside_it_say_what_they_say_alone(core: EngineCore) -> None:
    ask(core, "free", None, choices=2)
    alone, _ = drain(core)
    ask(core, "free", None, choices=2)
    ask(core, "held", NUMBER)

    together, _ = drain(core)

    assert {key: text for key, text in together.items() if key[0] == "free"} == alone


def test_log_probabilities_are_the_models_own(core: EngineCore) -> None:
    ask(core, "free", None, temperature=0.0, logprobs=5, max_tokens=1)
    (free,) = events_of(core)
    ask(core, "held", 'start: "7"', temperature=0.0, logprobs=5, max_tokens=1)
    (held,) = events_of(core)

    assert [token for token, _ in held.logprobs[0].top] == [token for token, _ in free.logprobs[0].top]
    assert held.token_ids == [ord("7") - 33]
    assert held.logprobs[0].logprob < free.logprobs[0].logprob


def events_of(core: EngineCore) -> list[Any]:
    messages = []
    while core.has_work:
        core.tend()
        messages += core.step()
    return [event for message in messages for event in message.events if event.token_ids]


def test_an_answer_that_is_cut_ends_by_its_length(core: EngineCore) -> None:
    ask(core, "held", NUMBER, max_tokens=1)

    texts, _ = drain(core)

    assert re.fullmatch(r"[1-9]0? length", texts["held", 0])


def test_a_grammar_that_costs_too_much_ends_its_request_alone(core: EngineCore) -> None:
    ask(core, "costly", COSTLY, max_tokens=230, logit_bias={END: -100.0})
    ask(core, "held", NUMBER)

    texts, refused = drain(core)

    assert [each.request_id for each in refused] == ["costly"]
    assert "items" in refused[0].message
    assert texts["held", 0].endswith(" stop")


def test_what_cannot_be_followed_is_refused_before_it_waits(core: EngineCore) -> None:
    for grammar, values, words in [
        ("start: (", {}, "Expected"),
        (NUMBER, {"min_tokens": 3}, "least number"),
        (NUMBER, {"beam": BeamParams(width=2)}, "search"),
    ]:
        sampling = SamplingParams(max_tokens=5, grammar=grammar, **values)
        answer = core.submit(Submit(request_id="r", prompt=pack(PROMPT), sampling=sampling, namespace=b"t"))
        assert isinstance(answer, Refused)
        assert words in answer.message


def test_without_a_vocabulary_there_are_no_grammars(folder: Path) -> None:
    answer = core_over(load(folder)).submit(make("r", NUMBER))

    assert isinstance(answer, Refused)
    assert "vocabulary" in answer.message


@pytest.mark.parametrize(
    "sampler", [HostSampler(), DeviceSampler(Kernels.triton().sampling, 101)], ids=["host", "device"]
)
def test_both_samplers_draw_what_is_allowed(sampler: Sampler, folder: Path, vocabulary: Path) -> None:
    runner = load(folder, vocabulary=str(vocabulary))
    runner.sampler = sampler
    core = core_over(runner)
    ask(core, "held", NUMBER, choices=3, temperature=1.0, top_k=5, presence_penalty=1.0, logprobs=2)

    texts, _ = drain(core)

    assert all(re.fullmatch(r"[1-9][0-9]{2,5} stop", text) for text in texts.values())


def test_only_named_rows_are_held_and_ids_without_a_token_are_forbidden() -> None:
    logits = torch.zeros(3, 70)
    bits = torch.tensor([[0b101, 0, 1 << 3]], dtype=torch.int32).numpy()

    forbid_others(logits, Allowed([1], bits))

    assert torch.isfinite(logits[1]).nonzero().flatten().tolist() == [0, 2, 67]
    assert torch.isfinite(logits[[0, 2]]).all()


class Slow:
    """Constraints that compile when they are told to."""

    def __init__(self, constraints: Constraints) -> None:
        self.may_compile = threading.Event()
        self.is_compiling = threading.Event()
        self.begin = constraints.begin
        self.close = constraints.close
        self._prepare = constraints.prepare
        self._thread = ThreadPoolExecutor(1)

    def prepare(self, grammar: str) -> "Future[None]":
        self.is_compiling.set()
        return self._thread.submit(self._compile, grammar)

    def _compile(self, grammar: str) -> None:
        assert self.may_compile.wait(20)
        self._prepare(grammar).result()


@pytest.fixture
def served(folder: Path, vocabulary: Path, tmp_path: Path) -> Iterator[tuple[str, Slow]]:
    runner = load(folder, vocabulary=str(vocabulary))
    assert isinstance(runner.grammars, Constraints)
    slow = Slow(runner.grammars)
    core = EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8), grammars=slow)
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    address = f"ipc://{tmp_path}/engine.sock"
    socket.bind(address)
    should_stop = threading.Event()
    thread = threading.Thread(target=EngineService(core, socket).run, args=(should_stop,))
    thread.start()
    yield address, slow
    slow.may_compile.set()
    should_stop.set()
    thread.join()
    socket.close(linger=0)


Make = Callable[[str, str | None], Submit]


def make(name: str, grammar: str | None) -> Submit:
    sampling = SamplingParams(max_tokens=8, temperature=0.0, stop_token_ids=(END,), grammar=grammar)
    return Submit(request_id=name, prompt=pack(PROMPT), sampling=sampling, namespace=b"t")


@pytest.mark.anyio
async def test_nobody_waits_while_a_grammar_is_compiled(served: tuple[str, Slow]) -> None:
    address, slow = served
    connection = EngineConnection(address)
    await asyncio.wait_for(connection.ready(), 20)
    held = asyncio.create_task(connection.start([make("held", NUMBER)]))
    assert await asyncio.to_thread(slow.is_compiling.wait, 20)

    free = [event async for event in await connection.start([make("free", None)])]
    assert free[-1].finish_reason is not None
    assert not held.done()

    slow.may_compile.set()
    events = [event async for event in await asyncio.wait_for(held, 20)]
    assert events[-1].finish_reason == "stop"
    await connection.close()


@pytest.mark.anyio
async def test_a_request_may_be_given_up_while_its_grammar_is_compiled(served: tuple[str, Slow]) -> None:
    address, slow = served
    connection = EngineConnection(address)
    await asyncio.wait_for(connection.ready(), 20)
    held = asyncio.create_task(connection.start([make("held", NUMBER)]))
    assert await asyncio.to_thread(slow.is_compiling.wait, 20)

    connection.abort("held")
    await connection.stats()  # answered after everything that was sent before
    slow.may_compile.set()
    events = [event async for event in await connection.start([make("next", NUMBER)])]

    assert events[-1].finish_reason == "stop"
    assert (await connection.stats()).num_finished == 1, "the one that was given up has never begun"
    held.cancel()
    await connection.close()
