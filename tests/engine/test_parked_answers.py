"""What lay on another tier answers as if it had never left: the default model in float32, token for token."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.core import CoreOptions, EngineCore
from engine.loading import load_tiers
from engine.messages import EngineConfig
from engine.runner import ModelRunner
from engine.scheduler import Limits
from gateway.conversation.prompt import Prompts
from tests.engine.answers import (
    NUM_TOKENS,
    QUESTION,
    Alone,
    SmallRunner,
    ask,
    assert_agree,
    chat,
    drain,
    park,
    submit,
)

HOST_BYTES = 32 << 20
Open = Callable[..., EngineCore]


@pytest.fixture
def open_core(runner: ModelRunner, tmp_path: Path) -> Iterator[Open]:
    """Makes cores with colder tiers; a second one over the same disk ends the first."""
    with ExitStack() as stack:

        def open_one(*, host: bool = False, disk: bool = False, num_blocks: int | None = None) -> EngineCore:
            stack.close()
            config = EngineConfig(
                model="loaded",
                host_bytes=HOST_BYTES if host else 0,
                disk_folder=str(tmp_path / "kv") if disk else None,
                disk_bytes=64 << 20,
            )
            core = EngineCore(
                runner if num_blocks is None else SmallRunner(runner, num_blocks),
                Limits(max_batch_tokens=64, max_sequences=8),
                tiers=load_tiers(config, runner),
                options=CoreOptions(swap="always"),
            )
            stack.callback(core.close)
            return core

        yield open_one


def wipe(runner: ModelRunner) -> None:
    """Whatever is answered now comes from elsewhere."""
    runner.pool.keys.fill_(7.0)
    runner.pool.values.fill_(7.0)


@pytest.mark.parametrize("tiers", [{"host": True}, {"disk": True}, {"host": True, "disk": True}])
def test_parked_and_resumed(
    prompts: Prompts, runner: ModelRunner, open_core: Open, alone: Alone, tiers: dict[str, bool]
) -> None:
    core, ids = open_core(**tiers), chat(prompts)
    said = ask(core, ids).token_ids
    moved = park(core, [*ids, *said])
    wipe(runner)
    following = [*ids, *said, *chat(prompts, "And for a grown-up?")[-20:]]

    warm = ask(core, following)

    assert moved.num_parked_tokens == len(ids) + NUM_TOKENS - 1
    assert core.stats().num_promoted_tokens == len(ids) + NUM_TOKENS - 1
    assert_agree(alone(following), warm)


def test_parked_and_resumed_by_another_process(
    prompts: Prompts, runner: ModelRunner, open_core: Open, alone: Alone
) -> None:
    first, ids = open_core(disk=True), chat(prompts)
    said = ask(first, ids).token_ids
    park(first, [*ids, *said])
    wipe(runner)
    following = [*ids, *said, *chat(prompts, "And for a grown-up?")[-20:]]

    warm = ask(second := open_core(disk=True), following)

    assert second.stats().num_promoted_tokens == len(ids) + NUM_TOKENS - 1
    assert_agree(alone(following), warm)


def test_resumed_into_the_middle_of_a_block(
    prompts: Prompts, runner: ModelRunner, open_core: Open, alone: Alone
) -> None:
    core, ids = open_core(host=True), chat(prompts)
    ask(core, [*ids[:21], 99, 98, 97], tokens=1)
    park(core, [*ids[:21], 99, 98, 97])
    wipe(runner)

    warm = ask(core, ids)

    assert core.stats().num_promoted_tokens == 21
    assert_agree(alone(ids), warm)


def test_a_damaged_block_is_computed_again(
    prompts: Prompts, runner: ModelRunner, open_core: Open, alone: Alone, tmp_path: Path
) -> None:
    core, ids = open_core(disk=True), chat(prompts)
    ask(core, ids, tokens=1)
    park(core, ids)
    core.close()
    blocks = tmp_path / "kv" / "blocks"
    damaged = bytearray(blocks.read_bytes())
    damaged[runner.pool.bytes_per_block + 1000] ^= 1
    blocks.write_bytes(damaged)
    wipe(runner)

    warm = ask(second := open_core(disk=True), ids)

    stats = second.stats()
    assert stats.num_damaged_blocks == 1
    assert 0 < stats.num_promoted_tokens < len(ids) - 1
    assert_agree(alone(ids), warm)


def test_preempted_evicted_and_brought_back(prompts: Prompts, open_core: Open, alone: Alone) -> None:
    ids = {
        name: chat(prompts, question) for name, question in (("old", QUESTION), ("young", "What is rain?"))
    }
    num_long = 4 * NUM_TOKENS
    core = open_core(host=True, num_blocks=-(-(len(ids["old"]) + num_long) // 16))
    submit(core, "old", ids["old"], tokens=num_long)
    submit(core, "young", ids["young"], tokens=num_long)

    answers = drain(core)

    assert core.scheduler.counters.num_preemptions > 0
    assert core.stats().num_promoted_tokens > 0
    for name, prompt in ids.items():
        assert_agree(alone(prompt), answers[name, 0])


def test_two_that_load_the_same_conversation_share_it(
    prompts: Prompts, runner: ModelRunner, open_core: Open, alone: Alone
) -> None:
    core, ids = open_core(host=True), chat(prompts)
    said = ask(core, ids).token_ids
    park(core, [*ids, *said])
    wipe(runner)
    branches = [
        [*ids, *said, *chat(prompts, question)[-16:]] for question in ("Why those?", "In verse, please.")
    ]
    for name, branch in zip("ab", branches, strict=True):
        submit(core, name, branch)

    answers = drain(core)

    num_said = len(ids) + NUM_TOKENS - 1
    assert num_said <= core.stats().num_promoted_tokens < 2 * num_said
    for name, branch in zip("ab", branches, strict=True):
        assert_agree(alone(branch), answers[name, 0])


def test_a_side_request_answers_the_same_and_keeps_nothing(
    prompts: Prompts, open_core: Open, alone: Alone
) -> None:
    core, ids = open_core(), chat(prompts)
    submit(core, "side", ids, is_side=True)

    answers = drain(core)

    assert_agree(alone(ids), answers["side", 0])
    assert core.cache.device.ledger.num_cached == 0
