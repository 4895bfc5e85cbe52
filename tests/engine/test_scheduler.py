"""The scheduler's policies: order, fairness, budgets and who is shed."""

import pytest

from engine.errors import RequestRefused
from engine.scheduler import Limits
from engine.sequence import BeamParams, SamplingParams
from engine.step import Step
from prefix_cache.lease import Retention
from prefix_cache.quota import Quota
from tests.simulation.harness import Simulation


def simulation(num_blocks: int = 64, *, max_batch_tokens: int = 64, **limits: int) -> Simulation:
    values = {"max_sequences": 8, **limits}
    return Simulation(num_blocks, 4, Limits(max_batch_tokens=max_batch_tokens, **values))


def prompt(num_tokens: int, first: int = 0) -> list[int]:
    """A prompt that shares nothing with one that has another first token."""
    return [first, *([1] * (num_tokens - 1))]


def asking(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


def spans_of(step: Step | None) -> dict[str, int]:
    """Tokens computed for each request."""
    assert step is not None
    return {span.sequence.request_id: span.end - span.start for span in step.spans}


def test_decodes_come_before_prefill_and_prefill_is_chunked() -> None:
    """A long prompt never delays a running answer by more than one step of the budget."""
    sim = simulation(max_batch_tokens=16)
    sim.add("old", prompt(4), asking(20))
    sim.step()
    sim.add("new", prompt(40, first=2), asking(1))

    steps = [spans_of(sim.step()) for _ in range(3)]

    assert steps == [{"old": 1, "new": 15}] * 2 + [{"old": 1, "new": 10}]


def test_a_tenant_at_its_ceiling_holds_up_nobody_else() -> None:
    """However many of its requests wait, and however often they are overtaken."""
    sim = simulation(max_sequences=4, max_overtaken=2)
    sim.quotas = {b"a": Quota(ceiling_blocks=12)}
    sim.boot()
    sim.add("long", prompt(20), asking(20), namespace=b"a")
    for number in range(6):
        sim.add(f"capped {number}", prompt(40, first=2 + number), asking(1), namespace=b"a")
    sim.step()

    for number in range(8):
        sim.add(f"other {number}", prompt(8, first=20 + number), asking(1), namespace=b"b")
        sim.step()

    assert all((f"other {number}", 0) in sim.ends for number in range(8))
    sim.drain()
    assert len(sim.ends) == 15


def test_a_tenant_at_its_ceiling_preempts_its_own() -> None:
    sim = simulation(num_blocks=200)
    sim.quotas = {b"a": Quota(ceiling_blocks=10)}
    sim.boot()
    sim.add("old", prompt(12), asking(24), namespace=b"a")
    sim.add("young", prompt(12, first=2), asking(24), namespace=b"a")
    sim.add("other", prompt(8, first=3), asking(60), namespace=b"b")
    preempted = set()
    while sim.scheduler.has_work:
        sim.step()
        preempted |= {sequence.request_id for sequence in sim.scheduler.admission.waiting}

    assert sim.scheduler.counters.num_preemptions > 0
    assert preempted == {"young"}


def test_the_reserve_for_those_that_run_does_not_count_against_a_ceiling() -> None:
    sim = simulation(num_blocks=200, max_sequences=32)
    sim.quotas = {b"a": Quota(ceiling_blocks=5)}
    sim.boot()
    for number in range(12):
        sim.add(str(number), prompt(4, first=number), asking(30), namespace=b"b")
    sim.step()

    sim.add("small", prompt(12, first=100), asking(1), namespace=b"a")

    assert "small" in spans_of(sim.step())


def test_nobody_is_shed_for_blocks_that_a_copy_holds() -> None:
    """What is being written to a colder tier is free for others when the copy has ended."""
    sim = Simulation(9, 4, Limits(64, 4), num_host_blocks=40, copies_per_step=0)
    sim.add("resting", prompt(15, first=9), asking(1))
    sim.step()
    sim.add("old", prompt(11), asking(12))
    sim.add("young", prompt(3, first=2), asking(8))
    for _ in range(12):
        sim.step()
    assert len(sim.scheduler.running) == 2
    assert len(sim.moving) == 1

    sim.copies_per_step = 8
    sim.drain()

    assert sim.scheduler.counters.num_preemptions == 0


def test_many_that_arrive_with_one_new_prompt_compute_it_once() -> None:
    """They wait for the one that leads, and share it to the token; each computes what is its own."""
    sim = simulation(num_blocks=200, max_batch_tokens=16)
    for number in range(6):
        sim.add(str(number), [*prompt(41), 10 + number, 9, 9], asking(1))
    sim.drain()

    assert sim.runner.num_computed == 41 + 6 * 3
    assert sim.scheduler.counters.num_cached_tokens == 5 * 41


def test_others_go_on_while_some_wait_for_a_leader() -> None:
    sim = simulation(max_batch_tokens=16)
    sim.add("leader", [*prompt(20), 8], asking(1))
    sim.add("waiter", [*prompt(20), 7], asking(1))
    sim.add("stranger", prompt(4, first=2), asking(1))
    sim.step()

    assert spans_of(sim.step()) == {"leader": 5, "stranger": 4}


def test_nobody_waits_for_a_side_request_whose_work_is_never_found() -> None:
    sim = simulation(max_batch_tokens=32)
    sim.add("side", prompt(10), asking(1), retention=Retention(is_side=True))
    sim.add("plain", prompt(10), asking(1))

    assert spans_of(sim.step()) == {"side": 10, "plain": 10}


def test_nobody_waits_across_namespaces() -> None:
    sim = simulation(max_batch_tokens=32)
    sim.add("a", prompt(10), asking(1), namespace=b"a")
    sim.add("b", prompt(10), asking(1), namespace=b"b")

    assert spans_of(sim.step()) == {"a": 10, "b": 10}


def test_when_a_leader_leaves_a_waiter_leads() -> None:
    sim = simulation(max_batch_tokens=16)
    for number in range(3):
        sim.add(str(number), [*prompt(40), 10 + number], asking(1))
    sim.step(while_in_flight=lambda: sim.scheduler.abort("0", None, sim.now))
    sim.drain()

    assert list(sim.ends) == [("1", 0), ("2", 0)]
    assert sim.runner.num_computed == 41 + 1


def test_small_requests_pass_one_that_lacks_blocks() -> None:
    """And the big one runs as soon as there is room for it; equals stay in order."""
    sim = simulation(num_blocks=20, max_overtaken=64)
    sim.add("holder", prompt(40), asking(16))
    sim.step()
    sim.add("big", prompt(44, first=2), asking(4))
    for number in range(3):
        sim.add(f"small{number}", prompt(4, first=3 + number), asking(2))
    sim.drain()

    ends = list(sim.ends)
    assert ends == [("small0", 0), ("small1", 0), ("small2", 0), ("holder", 0), ("big", 0)]


def test_nobody_is_overtaken_more_often_than_the_limit() -> None:
    """Two pass; the third waits until the big one has started, which the holder must end for."""
    sim = simulation(num_blocks=20, max_overtaken=2)
    sim.add("holder", prompt(40), asking(16))
    sim.step()
    sim.add("big", prompt(44, first=2), asking(4))
    for number in range(5):
        sim.add(f"small{number}", prompt(4, first=3), asking(2))
    sim.drain()

    ends = [request_id for request_id, _ in sim.ends]
    assert ends[:3] == ["small0", "small1", "holder"]


def test_the_youngest_is_shed_and_the_oldest_goes_on() -> None:
    sim = simulation(num_blocks=10)
    sim.add("old", prompt(12), asking(24))
    sim.step()
    sim.add("young", prompt(12, first=2), asking(24))
    sim.drain()

    assert sim.scheduler.counters.num_preemptions > 0
    assert list(sim.ends) == [("old", 0), ("young", 0)]
    assert [len(answer) for answer in sim.answers.values()] == [24, 24]


def test_choices_compute_the_prompt_once() -> None:
    """Each further choice computes the prompt's last token only, in a copy of its last block."""
    sim = simulation()
    sim.add("r", prompt(30), asking(1), choices=4)
    sim.drain()

    assert sim.runner.num_computed == 30 + 3
    assert sim.cache.device.num_copied == 3


def test_when_the_leading_choice_leaves_another_leads() -> None:
    sim = simulation(max_batch_tokens=16)
    sim.add("r", prompt(40), asking(3), choices=3)
    sim.step(while_in_flight=lambda: sim.scheduler.abort("r", 0, sim.now))
    sim.drain()

    assert sorted(sim.ends) == [("r", 1), ("r", 2)]
    assert sim.cache.device.ledger.num_held == 0


def test_a_failed_step_ends_all_choices_of_its_requests() -> None:
    sim = simulation()
    sim.add("r", prompt(30), asking(3), choices=3)
    step = sim.scheduler.schedule(now=1.0)
    assert step is not None

    gone = sim.scheduler.abandon(step, now=1.0)

    sim.scheduler.check_invariants()
    assert {sequence.choice for sequence in gone} == {0, 1, 2}
    assert not sim.scheduler.has_work
    assert sim.cache.device.ledger.num_free == sim.num_blocks


def test_no_more_sequences_run_than_allowed() -> None:
    sim = simulation(max_sequences=2)
    for number in range(5):
        sim.add(str(number), prompt(4, first=number), asking(4))

    while sim.scheduler.has_work:
        step = sim.step()
        assert step is not None
        assert len(step.spans) <= 2


def test_what_could_never_run_is_refused() -> None:
    sim = simulation(num_blocks=4)

    with pytest.raises(RequestRefused, match="16"):
        sim.add("r", prompt(10), asking(7))
    sim.add("r", prompt(10), asking(6))
    sim.drain()

    assert len(sim.answers["r", 0]) == 6


def test_a_prompt_may_be_weighed_alone_though_it_fills_the_pool() -> None:
    """Nothing is drawn, so nothing needs room beside it."""
    sim = simulation(num_blocks=4)
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=0)
    sim.add("r", prompt(16), sampling, choices=2)
    sim.drain()

    assert sim.ends == {("r", 0): "length", ("r", 1): "length"}
    assert sim.answers == {("r", 0): [], ("r", 1): []}
    assert len(sim.prompt_weights["r"]) == 15
    with pytest.raises(RequestRefused, match="search"):
        sim.add("s", prompt(4), SamplingParams(max_tokens=0, beam=BeamParams(width=2)))
