"""Asking an engine in this process, and comparing its answers with those of a cold and lonely run.

Two answers must agree up to the first place where the two best logits of the cold run are closer than 1e-3:
there the order of additions may decide, and does so without any cache.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from engine.cache_messages import Moved, Park
from engine.core import EngineCore
from engine.messages import Accepted, Submit, TokenEvents
from engine.runner import ModelRunner
from engine.sequence import SamplingParams
from gateway.conversation.prompt import Prompts

CLOSE = 1e-3
NUM_TOKENS = 24
SYSTEM = "You are a patient librarian. You know every shelf, and you answer in full sentences."
QUESTION = "Which books about the sea would you give to a child of ten, and why?"


@dataclass
class Answer:
    """What one choice said, and how far that is beyond doubt."""

    token_ids: list[int]
    num_certain: int


Fresh = Callable[[], EngineCore]
Alone = Callable[[list[int]], Answer]


def chat(prompts: Prompts, question: str = QUESTION, system: str = SYSTEM) -> list[int]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return list(prompts.render(messages, tenant="t", now=datetime(2026, 1, 1, tzinfo=UTC)).ids)


def submit(
    core: EngineCore,
    name: str,
    ids: list[int],
    *,
    tokens: int = NUM_TOKENS,
    choices: int = 1,
    is_side: bool = False,
) -> None:
    refused = core.submit(
        Submit(
            request_id=name,
            prompt=prompts_bytes(ids),
            sampling=SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=2),
            namespace=b"t",
            num_choices=choices,
            is_side=is_side,
            persists=True,
        )
    )
    assert isinstance(refused, Accepted)


def prompts_bytes(ids: list[int]) -> bytes:
    return b"".join(token_id.to_bytes(4, "little") for token_id in ids)


def drain(core: EngineCore) -> dict[tuple[str, int], Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    while core.has_work:
        core.tend()
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                answer = answers.setdefault((event.request_id, event.choice), Answer([], 0))
                for token_id, logprob in zip(event.token_ids, event.logprobs or [], strict=True):
                    (_, best), (_, second) = logprob.top
                    if answer.num_certain == len(answer.token_ids) and best - second > CLOSE:
                        answer.num_certain += 1
                    answer.token_ids.append(token_id)
        core.scheduler.check_invariants()
    settle(core)
    assert core.cache.device.ledger.num_held == 0
    return answers


def settle(core: EngineCore) -> None:
    """Wait until nothing moves between tiers any more."""
    while core.is_moving:
        core.tend()
        time.sleep(0.001)


def park(core: EngineCore, ids: list[int]) -> Moved:
    """Park a prefix and wait until that is answered."""
    errand = core.answers.park(Park(ticket=1, namespace=b"t", tokens=prompts_bytes(ids)), core.now)
    while not errand.movement.is_done:
        core.tend()
        time.sleep(0.001)
    return core.answers.moved(errand, core.now)


def ask(core: EngineCore, ids: list[int], *, tokens: int = NUM_TOKENS) -> Answer:
    submit(core, "asked", ids, tokens=tokens)
    return drain(core)["asked", 0]


def assert_agree(cold: Answer, other: Answer) -> None:
    assert cold.num_certain > 8, "the comparison covers something"
    assert other.token_ids[: cold.num_certain] == cold.token_ids[: cold.num_certain]


class SmallRunner:
    """The same runner, of which only the first blocks may be used."""

    def __init__(self, runner: ModelRunner, num_blocks: int) -> None:
        self.info = replace(runner.info, num_blocks=num_blocks)
        self.run = runner.run
