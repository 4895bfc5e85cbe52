"""In the precision in which products round most: the same answers, bit for bit, whatever runs beside them.

The deterministic mode gives them with products in full, and products of bytes without it.
"""

from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.loading import load_runner
from engine.messages import Accepted, EngineConfig, Submit, TokenEvents
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.speculation.length import LookaheadPolicy
from gateway.conversation.prompt import Prompts
from prefix_cache.tokens import pack
from tests.engine.answers import chat

QUESTIONS = (
    "Which books about the sea would you give to a child of ten, and why?",
    "Count from one to twenty.",
    "What is the capital of France?",
    "Write a short poem about a cat, a cat, and a cat.",
    "Explain to me what a prime number is.",
)
Said = list[tuple[int, float]]  # tokens with their log-probabilities


@pytest.fixture(scope="module", params=[("full", "full"), ("int8", "full"), ("int8", "int8")])
def runner(request: pytest.FixtureRequest, default_model_path: Path) -> ModelRunner:
    products, kv_dtype = request.param
    return load_runner(
        EngineConfig(
            model=str(default_model_path),
            kv_bytes=64 << 20,
            products=products,
            kv_dtype=kv_dtype,
            deterministic=products == "full",
            speculation="ngram",
        )
    )


def say(core: EngineCore, prompts: dict[str, list[int]]) -> dict[str, Said]:
    """What each prompt is answered when all are asked at once."""
    for name, ids in prompts.items():
        sampling = SamplingParams(max_tokens=20, temperature=0.7, seed=11, logprobs=0)
        message = Submit(request_id=name, prompt=pack(ids), sampling=sampling, namespace=b"t")
        assert isinstance(core.submit(message), Accepted)
    said: dict[str, Said] = {name: [] for name in prompts}
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                told = [each.logprob for each in event.logprobs or []]
                said[event.request_id] += zip(event.token_ids, told, strict=True)
    return said


def test_logits_do_not_depend_on_company_cache_chunks_or_proposals(
    runner: ModelRunner, prompts: Prompts
) -> None:
    """The same tokens with the same log-probabilities, to the last bit, however they were computed."""

    def fresh(max_batch_tokens: int = 256, *, proposes: bool = False) -> EngineCore:
        lookahead = LookaheadPolicy(lambda num_tokens: 1.0, max_tokens=4) if proposes else None
        limits = Limits(max_batch_tokens=max_batch_tokens, max_sequences=8)
        return EngineCore(runner, limits, lookahead=lookahead)

    asked = {question: chat(prompts, question) for question in QUESTIONS}
    alone: dict[str, Said] = {}
    for question, ids in asked.items():
        alone |= say(fresh(), {question: ids})

    core = fresh()
    assert say(core, asked) == alone
    assert say(core, asked) == alone  # all of it cached
    assert say(fresh(max_batch_tokens=23), asked) == alone
    proposing = fresh(proposes=True)
    assert say(proposing, asked) == alone
    assert proposing.stats().num_accepted_tokens > 0
    assert len({tuple(each) for each in alone.values()}) == len(QUESTIONS)
