"""The cache never changes an answer: the default model in float32, greedy, compared token for token."""

import pytest

from engine.core import EngineCore
from engine.runner import ModelRunner
from engine.scheduler import Limits
from gateway.conversation.prompt import Prompts
from tests.engine.answers import (
    NUM_TOKENS,
    QUESTION,
    Alone,
    Fresh,
    SmallRunner,
    ask,
    assert_agree,
    chat,
    drain,
    submit,
)


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

    assert core.cache.device.num_copied >= 2
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
