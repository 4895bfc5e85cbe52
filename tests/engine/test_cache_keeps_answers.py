"""The cache never changes an answer: the default model in float32, greedy, compared token for token.

Two answers must agree up to the first place where the two best logits of the cold run are closer than 1e-3:
there the order of additions may decide, and does so without any cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine.core import EngineCore
from engine.messages import EngineConfig, Submit, TokenEvents
from engine.runner import ModelRunner, load_runner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from gateway.conversation.prompt import Prompts, load_prompts

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


@pytest.fixture(scope="module")
def runner(default_model_path: Path) -> ModelRunner:
    return load_runner(EngineConfig(model=str(default_model_path), dtype="float32", kv_bytes=64 << 20))


@pytest.fixture(scope="module")
def prompts(default_model_path: Path) -> Prompts:
    return load_prompts(default_model_path)


@pytest.fixture
def fresh(runner: ModelRunner) -> Fresh:
    """Makes cores whose caches are empty; the memory behind them keeps what others left there."""
    return lambda: EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8))


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> Alone:
    """What a prompt is answered by an empty cache and without company; each is computed once."""
    known: dict[tuple[int, ...], Answer] = {}

    def answer(ids: list[int]) -> Answer:
        if tuple(ids) not in known:
            core = EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8))
            known[tuple(ids)] = ask(core, ids)
        return known[tuple(ids)]

    return answer


def chat(prompts: Prompts, question: str = QUESTION, system: str = SYSTEM) -> list[int]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return list(prompts.render(messages, tenant="t", now=datetime(2026, 1, 1, tzinfo=UTC)).ids)


def submit(
    core: EngineCore, name: str, ids: list[int], *, tokens: int = NUM_TOKENS, choices: int = 1
) -> None:
    refused = core.submit(
        Submit(
            request_id=name,
            prompt=prompts_bytes(ids),
            sampling=SamplingParams(max_tokens=tokens, temperature=0.0, logprobs=2),
            namespace=b"t",
            num_choices=choices,
        )
    )
    assert refused is None


def prompts_bytes(ids: list[int]) -> bytes:
    return b"".join(token_id.to_bytes(4, "little") for token_id in ids)


def drain(core: EngineCore) -> dict[tuple[str, int], Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    while core.has_work:
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
    assert core.cache.ledger.num_held == 0
    return answers


def ask(core: EngineCore, ids: list[int], *, tokens: int = NUM_TOKENS) -> Answer:
    submit(core, "asked", ids, tokens=tokens)
    return drain(core)["asked", 0]


def assert_agree(cold: Answer, other: Answer) -> None:
    assert cold.num_certain > 8, "the comparison covers something"
    assert other.token_ids[: cold.num_certain] == cold.token_ids[: cold.num_certain]


def test_a_hit_answers_as_a_cold_run(prompts: Prompts, fresh: Fresh, alone: Alone) -> None:
    core, ids = fresh(), chat(prompts)
    ask(core, ids, tokens=1)

    warm = ask(core, ids)

    assert core.scheduler.counters.num_cached_tokens == len(ids) - 1
    assert_agree(alone(ids), warm)


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 33])
def test_a_hit_that_ends_anywhere_in_a_block(
    prompts: Prompts, fresh: Fresh, alone: Alone, shared: int
) -> None:
    ids = chat(prompts)
    cold = alone(ids)
    core = fresh()
    ask(core, [*ids[:shared], 99, 98, 97], tokens=2)

    warm = ask(core, ids)

    assert core.scheduler.counters.num_cached_tokens == shared
    assert_agree(cold, warm)


def test_the_next_turn_over_cached_answer_tokens(prompts: Prompts, fresh: Fresh, alone: Alone) -> None:
    core, ids = fresh(), chat(prompts)
    first = ask(core, ids)
    following = [*ids, *first.token_ids, *chat(prompts, "And for a grown-up?")[-20:]]

    warm = ask(core, following)

    assert core.scheduler.counters.num_cached_tokens == len(ids) + NUM_TOKENS - 1
    assert_agree(alone(following), warm)


def test_choices_that_fork_from_one_prompt(prompts: Prompts, fresh: Fresh, alone: Alone) -> None:
    ids = chat(prompts, "Which books about the sea would you give to a child?")
    assert len(ids) % 16 != 1, "the last token's predecessors end inside a block"
    cold = alone(ids)
    core = fresh()
    submit(core, "n", ids, choices=3)

    answers = drain(core)

    assert core.cache.num_copied >= 2
    for choice in range(3):
        assert_agree(cold, answers["n", choice])


def test_two_that_continue_one_conversation_differently(prompts: Prompts, fresh: Fresh, alone: Alone) -> None:
    core, ids = fresh(), chat(prompts)
    said = ask(core, ids).token_ids
    branches = [
        [*ids, *said, *chat(prompts, question)[-16:]] for question in ("Why those?", "In verse, please.")
    ]
    for name, branch in zip("ab", branches, strict=True):
        submit(core, name, branch)

    answers = drain(core)

    for name, branch in zip("ab", branches, strict=True):
        assert_agree(alone(branch), answers[name, 0])


def test_among_strangers(prompts: Prompts, fresh: Fresh, alone: Alone) -> None:
    questions = [
        QUESTION,
        "What is rain?",
        "Name three rivers of Europe, and where each of them ends.",
        "Hello!",
    ]
    core = fresh()
    for question in questions:
        submit(core, question, chat(prompts, question))

    together = drain(core)

    for question in questions:
        assert_agree(alone(chat(prompts, question)), together[question, 0])


def test_preempted_and_resumed(prompts: Prompts, runner: ModelRunner, fresh: Fresh, alone: Alone) -> None:
    ids = {
        name: chat(prompts, question) for name, question in (("old", QUESTION), ("young", "What is rain?"))
    }
    num_blocks = -(-(max(map(len, ids.values())) + NUM_TOKENS) // 16) + 2
    core = EngineCore(SmallRunner(runner, num_blocks), Limits(max_batch_tokens=64, max_sequences=8))
    for name, prompt in ids.items():
        submit(core, name, prompt)

    answers = drain(core)

    assert core.scheduler.counters.num_preemptions > 0
    for name, prompt in ids.items():
        assert_agree(alone(prompt), answers[name, 0])


class SmallRunner:
    """The same runner, of which only the first blocks may be used."""

    def __init__(self, runner: ModelRunner, num_blocks: int) -> None:
        self.info = type(runner.info)(
            **{name: getattr(runner.info, name) for name in runner.info.__struct_fields__}
            | {"num_blocks": num_blocks}
        )
        self.run = runner.run
