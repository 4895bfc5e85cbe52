"""Sequences that are resumed, cut, evicted or crowded, in the simulation and with the default model."""

from array import array

import pytest

from engine.core import EngineCore
from engine.messages import Accepted, Submit, TokenEvents, TokenLogprob
from engine.runner import ModelRunner
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from prefix_cache.plan import Tier
from prefix_cache.tokens import pack
from tests.engine.answers import SmallRunner
from tests.simulation.harness import STOP, Simulation, answer_alone

BLOCK_SIZE = 4
CLOSE = 2e-3  # of log-probabilities in float32, whatever is computed beside them


def simulation(num_blocks: int = 64, *, max_batch_tokens: int = 16, max_sequences: int = 8) -> Simulation:
    return Simulation(num_blocks, BLOCK_SIZE, Limits(max_batch_tokens, max_sequences))


def asking(max_tokens: int, *stop_token_ids: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids)


def say(sim: Simulation, name: str, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Run one request to its end; what it said."""
    sim.add(name, prompt, sampling)
    sim.drain()
    return sim.answers.get((name, 0), [])


def abort(sim: Simulation, *names: str, in_flight: bool) -> None:
    """End requests between two steps, or while one is in flight."""

    def leave() -> None:
        for name in names:
            sim.scheduler.abort(name, None, sim.now)

    sim.step(leave) if in_flight else leave()


@pytest.mark.parametrize("num_prompt_tokens", range(9, 18))
@pytest.mark.parametrize("end", ["length", "stop", "abort", "abort in flight"])
def test_what_continues_an_answer_says_what_the_one_answer_would_have_said(
    num_prompt_tokens: int, end: str
) -> None:
    """However the first part ended: its last token was never computed, and does not count as if it were."""
    prompt = [each % 5 for each in range(num_prompt_tokens)]
    whole, _ = answer_alone(prompt, asking(24), 0)
    sim = simulation()
    sim.add("begun", prompt, asking(10 if end == "length" else 24, *([STOP] if end == "stop" else [])))
    if end.startswith("abort"):
        for _ in range(6):
            sim.step()
        abort(sim, "begun", in_flight=end == "abort in flight")
    sim.drain()
    begun = sim.answers[("begun", 0)]

    following = say(sim, "following", [*prompt, *begun], asking(24 - len(begun)))

    assert begun + following == whole
    assert sim.scheduler.counters.num_cached_tokens <= num_prompt_tokens + len(begun) - 1


def test_a_prompt_that_was_evicted_is_computed_anew_and_says_the_same() -> None:
    sim = simulation(num_blocks=16)
    prompt = [1, 2] * 12
    before = say(sim, "before", prompt, asking(8))
    for number in range(6):
        say(sim, f"{number}", [3 + number, *([4] * 31)], asking(8))

    after = say(sim, "after", prompt, asking(8))

    assert after == before
    assert sim.cache.device.ledger.num_evicted >= 8
    assert sim.scheduler.counters.num_cached_tokens == 0


def test_two_long_conversations_resumed_at_once_both_go_on() -> None:
    """Each would hold more than half of the pool; neither may wait for what the other holds."""
    sim = simulation(num_blocks=20)
    prompts = {name: [first, *([1] * 29)] for name, first in (("one", 2), ("two", 3))}
    said = {name: say(sim, name, prompt, asking(6)) for name, prompt in prompts.items()}
    resumed = {name: [*prompts[name], *said[name], *([4] * 12)] for name in prompts}
    for name, prompt in resumed.items():
        sim.add(f"{name} again", prompt, asking(12))
    sim.drain()

    for name, prompt in resumed.items():
        assert sim.answers[(f"{name} again", 0)] == answer_alone(prompt, asking(12), 0)[0]
    assert sim.cache.device.ledger.num_held == 0


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("in_flight", [True, False])
def test_whenever_somebody_leaves_a_warm_prefix_the_whole_pool_can_be_had(
    num_steps: int, in_flight: bool
) -> None:
    sim = simulation(num_blocks=16, max_sequences=2)
    prefix = [1] * 22
    say(sim, "warm", prefix, asking(4))
    for name in "abc":
        sim.add(name, [*prefix, 2, ord(name) % 5], asking(9))

    for _ in range(num_steps):
        sim.step()
    abort(sim, *"abc", in_flight=in_flight)

    assert not sim.scheduler.has_work
    assert sim.cache.device.ledger.num_held == 0
    assert len(say(sim, "all", [5] * 32, asking(32))) == 32


@pytest.mark.parametrize("apart", [1, 1 << 8, 1 << 16, 1 << 24])
def test_prompts_of_different_ids_share_nothing_however_alike_their_bytes(apart: int) -> None:
    sim = simulation()
    say(sim, "one", [5] * 64, asking(8))

    other = say(sim, "other", [5 + apart] * 64, asking(8))

    assert sim.scheduler.counters.num_cached_tokens == 0
    assert other == answer_alone([5 + apart] * 64, asking(8), 0)[0]


def test_an_answer_that_runs_gets_a_token_of_every_step_while_long_prompts_arrive() -> None:
    sim = simulation(num_blocks=512, max_batch_tokens=16, max_sequences=16)
    sim.add("stream", [1, 2, 3], asking(60))
    sim.step()
    for number in range(10):
        sim.add(f"{number}", [5 + number, *([4] * 70)], asking(1))
        for _ in range(5):
            step = sim.step()
            assert step is not None
            assert "stream" in {span.sequence.request_id for span in step.spans}
    sim.drain()

    assert len(sim.ends) == 11


def core_of(runner: ModelRunner, max_batch_tokens: int = 64) -> EngineCore:
    """A core with an empty cache; the memory behind it keeps what others left there."""
    return EngineCore(runner, Limits(max_batch_tokens, max_sequences=7))


Answer = list[tuple[int, TokenLogprob | None]]  # tokens, and what was told of each


def answers(core: EngineCore, asked: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
    """Run all at once to their ends."""
    said: dict[str, Answer] = {name: [] for name in asked}
    for name, (prompt, sampling) in asked.items():
        ids = array("i", prompt).tobytes()
        message = Submit(request_id=name, prompt=ids, sampling=sampling, namespace=b"t")
        assert isinstance(core.submit(message), Accepted)
    while core.has_work:
        for message in core.step():
            assert isinstance(message, TokenEvents)
            for event in message.events:
                told = event.logprobs or [None] * len(event.token_ids)
                said[event.request_id] += zip(event.token_ids, told, strict=True)
    return said


def ask(core: EngineCore, prompt: list[int], **sampling: object) -> Answer:
    values = {"max_tokens": 5, "temperature": 0.0, "logprobs": 2} | sampling
    return answers(core, {"r": (prompt, SamplingParams(**values))})["r"]


def assert_same(one: Answer, other: Answer) -> None:
    """The same tokens, told alike; where two tokens are as good as equal, the answers may part."""
    assert len(one) == len(other)
    for (token, told), (other_token, other_told) in zip(one, other, strict=True):
        assert (told is None) == (other_told is None)
        if told is not None and other_told is not None:
            assert len(told.top) == len(other_told.top)
            if len(told.top) > 1 and told.top[0][1] - told.top[1][1] < CLOSE:
                return
            assert other_told.logprob == pytest.approx(told.logprob, abs=CLOSE)
        assert token == other_token


def words(num_tokens: int) -> list[int]:
    """A prompt of ordinary tokens."""
    return [1000 + 37 * place % 900 for place in range(num_tokens)]


@pytest.mark.parametrize("num_tokens", [1, 16, 63, 64, 65])
def test_hits_up_to_the_last_token_are_told_like_the_cold_run(runner: ModelRunner, num_tokens: int) -> None:
    core = core_of(runner)
    cold, *warm = [ask(core, words(num_tokens)) for _ in range(3)]

    for again in warm:
        assert_same(cold, again)
    assert core.scheduler.counters.num_cached_tokens == 2 * (num_tokens - 1)
    core.scheduler.check_invariants()


def test_penalties_see_the_whole_prompt_however_much_of_it_was_cached(runner: ModelRunner) -> None:
    """The prompt repeats itself, so that the model would go on repeating it."""
    core, prompt = core_of(runner), words(6) * 7
    penalties = {"repetition_penalty": 1.8, "frequency_penalty": 1.0, "presence_penalty": 0.5}

    cold = ask(core, prompt, **penalties)
    warm = ask(core, prompt, **penalties)
    partly = ask(core_after(runner, prompt[:21]), prompt, **penalties)

    assert_same(cold, warm)
    assert_same(cold, partly)
    assert [token for token, _ in ask(core, prompt)] != [token for token, _ in cold]


def core_after(runner: ModelRunner, prompt: list[int]) -> EngineCore:
    """A core that has served a prompt."""
    core = core_of(runner)
    ask(core, prompt, max_tokens=1)
    return core


def test_in_a_mixed_batch_everybody_is_told_what_they_are_told_alone(runner: ModelRunner) -> None:
    asked = {
        f"{logprobs} at {temperature}": (
            words(5 + 7 * place),
            SamplingParams(max_tokens=3, temperature=temperature, logprobs=logprobs, seed=3),
        )
        for place, (logprobs, temperature) in enumerate(
            [(None, 0.0), (0, 0.0), (1, 0.0), (5, 0.0), (5, 1.0), (20, 0.7)]
        )
    }
    together = answers(core_of(runner), asked)

    for name, request in asked.items():
        assert_same(answers(core_of(runner), {name: request})[name], together[name])


def test_a_prompt_may_be_computed_in_chunks_of_any_size(runner: ModelRunner) -> None:
    whole, *chunked = [ask(core_of(runner, size), words(40), max_tokens=3) for size in (64, 33, 16, 7)]

    for answer in chunked:
        assert_same(whole, answer)


def test_a_seeded_answer_that_was_preempted_says_what_it_would_say_alone(
    runner: ModelRunner,
) -> None:
    # five tokens to draw from: among thousands the last bits of a sum decide now and then
    asked = {
        name: (
            words(40)[start:][:20],
            SamplingParams(max_tokens=20, temperature=1.0, top_k=5, seed=seed, logprobs=2),
        )
        for name, start, seed in (("old", 0, 5), ("young", 7, 6))
    }
    crowded = EngineCore(SmallRunner(runner, 5), Limits(max_batch_tokens=64, max_sequences=8))

    together = answers(crowded, asked)

    assert crowded.scheduler.counters.num_preemptions > 0
    for name, request in asked.items():
        core = EngineCore(runner, Limits(max_batch_tokens=64, max_sequences=8))
        alone = answers(core, {name: request})[name]
        assert [token for token, _ in together[name]] == [token for token, _ in alone]
        assert len(alone) == 20
        for (_, told), (_, told_alone) in zip(together[name], alone, strict=True):
            assert told is not None
            assert told_alone is not None
            assert told.logprob == pytest.approx(told_alone.logprob, abs=CLOSE)


@pytest.mark.parametrize("num_others", range(7))
def test_a_chain_loses_its_end_first_and_what_is_left_of_it_is_found(num_others: int) -> None:
    sim = Simulation(16, BLOCK_SIZE, Limits(16, 8))
    chain = [each % 5 for each in range(8 * BLOCK_SIZE)]
    before = say(sim, "chain", chain, asking(4))
    say(sim, "tail", [*chain, 5, 5], asking(1))
    say(sim, "others", [5] * ((7 + num_others) * BLOCK_SIZE), asking(1))
    left = sim.cache.match_length(b"a", pack(chain[:-1]))
    found = sim.scheduler.counters.num_cached_tokens

    after = say(sim, "again", chain, asking(4))

    assert left == min(31, (16 - 7 - num_others) * BLOCK_SIZE)
    assert sim.scheduler.counters.num_cached_tokens - found == left
    assert after == before


@pytest.mark.parametrize("copies_per_step", [1, 3, 100])
def test_two_conversations_brought_back_from_the_host_at_once_both_go_on(copies_per_step: int) -> None:
    """Both load what the host holds, and each needs what the other has leased."""
    limits = Limits(max_batch_tokens=16, max_sequences=8)
    sim = Simulation(
        32, BLOCK_SIZE, limits, num_host_blocks=64, copies_per_step=copies_per_step, swap="always"
    )
    resumed = {}
    for name, first in (("one", 2), ("two", 3)):
        prompt = [first, *([1] * 70)]
        said = say(sim, name, prompt, asking(6))
        sim.cache.park(b"a", pack([*prompt, *said]))
        sim.settle()
        resumed[name] = [*prompt, *said, *([4] * 38)]
    assert sim.cache.device.ledger.num_free == 32

    for name, prompt in resumed.items():
        sim.add(f"{name} again", prompt, asking(6))
    sim.drain()
    sim.settle()

    for name, prompt in resumed.items():
        assert sim.answers[(f"{name} again", 0)] == answer_alone(prompt, asking(6), 0)[0]
    assert sim.scheduler.counters.num_found_tokens[Tier.HOST] >= 2 * 76 - 4
    assert sim.cache.device.ledger.num_held == 0
