"""Who starts next: bounds that hold for everybody, and the order within them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Step, enough_of_prompts
from prefix_cache.quota import account_of
from tests.simulation.harness import Simulation

BLOCK_SIZE = 4


def simulation(num_blocks: int = 200, *, max_batch_tokens: int = 32, **values: float) -> Simulation:
    limits = {"max_sequences": 4, **values}
    return Simulation(num_blocks, BLOCK_SIZE, Limits(max_batch_tokens=max_batch_tokens, **limits))


def asking(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


def prompt(num_tokens: int, first: int) -> list[int]:
    """A prompt that shares nothing with one that has another first token."""
    return [first, *([1] * (num_tokens - 1))]


def started(sim: Simulation) -> list[str]:
    """The requests that wait, in the order in which they begin, after running all of them."""
    order: list[str] = []
    before = {request_id for request_id, _ in sim.ends}
    while sim.scheduler.has_work:
        sim.step()
        for sequence in sim.scheduler.running:
            if sequence.request_id not in order:
                order.append(sequence.request_id)
        for request_id, _ in sim.ends:
            if request_id not in order and request_id not in before:
                order.append(request_id)
    return order


loads = st.lists(
    st.tuples(
        st.integers(0, 20),  # when it arrives
        st.integers(1, 30),  # tokens of its prompt
        st.integers(1, 6),  # tokens of its answer
        st.integers(-2, 2),  # its priority
        st.integers(0, 3),  # its first token: those that are equal share a prefix
    ),
    min_size=2,
    max_size=24,
)


@given(loads, st.integers(0, 4), st.integers(9, 20), st.integers(1, 3))
def test_nobody_is_overtaken_by_more_younger_ones_than_the_limit(
    load: Sequence[tuple[int, int, int, int, int]], max_overtaken: int, num_blocks: int, max_sequences: int
) -> None:
    """Whatever their priorities, sizes and matches, and however little room there is: the bound that is
    promised, held against what really started.
    """
    sim = simulation(num_blocks, max_overtaken=max_overtaken, max_sequences=max_sequences)
    passed: dict[int, set[int]] = {}  # of each that waits: the younger ones that were seen to start

    def look() -> None:
        begun = {sequence.order for sequence in sim.scheduler.running}
        for sequence in sim.scheduler.admission.waiting:
            if not sequence.has_begun:
                seen = passed.setdefault(sequence.order, set())
                seen |= {order for order in begun if order > sequence.order}
                assert len(seen) <= max_overtaken

    for time in range(21):
        for number, (arrives, size, answer, priority, first) in enumerate(load):
            if arrives == time:
                sim.add(str(number), prompt(size, first), asking(answer), queue_priority=priority)
        sim.step(look)
        look()
    while sim.scheduler.has_work:
        sim.step(look)
        look()

    assert len(sim.ends) == len(load)


@given(
    st.sampled_from([(1.0, 1.0), (1.0, 3.0), (2.0, 0.5)]),
    st.integers(2, 6),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_tenants_that_always_want_more_are_served_by_their_weights(
    weights: tuple[float, float], max_sequences: int, one_size: int, other_size: int
) -> None:
    """What two backlogged tenants were served, each divided by its weight, never differs by more than two of
    the largest requests and steps, however their requests differ.
    """
    sim = simulation(max_sequences=max_sequences)
    sim.weights = {b"a": weights[0], b"b": weights[1]}
    sim.boot()
    for number in range(60):
        for name, size in ((b"a", one_size), (b"b", other_size)):
            text = [number % 7, number // 7, *([2] * size)]
            sim.add(f"{name!r} {number}", text, asking(4), namespace=name)
    served = {b"a": 0, b"b": 0}
    least = min(weights)
    bound = 2 * (max(one_size, other_size) + 6 + sim.limits.max_batch_tokens) / least
    for _ in range(40):
        step = sim.step()
        waiting = {sequence.namespace for sequence in sim.scheduler.admission.waiting}
        if step is None or len(waiting) < 2:
            break
        for span in step.spans:
            served[span.sequence.namespace] += span.end - span.start
        assert abs(served[b"a"] / weights[0] - served[b"b"] / weights[1]) <= bound
    assert min(served.values()) > 0


def test_a_newcomer_does_not_wait_for_another_tenants_queue() -> None:
    sim = simulation()
    for number in range(20):
        sim.add(f"flood {number}", prompt(30, first=number), asking(10), namespace=b"a")
    for _ in range(10):
        sim.step()
    sim.add("newcomer", prompt(30, first=40), asking(2), namespace=b"b")

    for _ in range(6):
        sim.step()

    assert ("newcomer", 0) in sim.ends
    assert len(sim.ends) < 10


def test_a_tenant_with_less_than_its_share_of_places_is_made_way_for() -> None:
    """All places are taken by answers that take long: the youngest of them gives its place up."""
    sim = simulation(max_sequences=4)
    for number in range(4):
        sim.add(f"long {number}", prompt(8, first=number), asking(100), namespace=b"a")
    for _ in range(3):
        sim.step()
    sim.add("other", prompt(8, first=9), asking(2), namespace=b"b")

    for _ in range(4):
        sim.step()

    assert list(sim.ends) == [("other", 0)]
    assert sim.scheduler.counters.num_preemptions == 1
    assert [len(sim.answers[f"long {number}", 0]) for number in range(3)] == [7, 7, 7]


def test_nobody_gives_way_whose_turn_comes_first() -> None:
    """It would take the place back in the same step: one tenant has most places, and was served least."""
    sim = simulation(max_sequences=4)
    for number in range(3):
        sim.add(f"small {number}", [number, 1], asking(60), namespace=b"c")
    sim.add("middle", prompt(60, first=10), asking(1), namespace=b"b")
    while ("middle", 0) not in sim.ends:
        sim.step()
    sim.add("large", prompt(150, first=11), asking(60), namespace=b"a")
    sim.step()
    sim.add("middle again", prompt(20, first=12), asking(1), namespace=b"b")

    for _ in range(5):
        sim.step()

    assert sim.scheduler.counters.num_preemptions == 0
    sim.drain()
    assert len(sim.ends) == 6


def test_no_tenant_is_made_way_for_beyond_its_share() -> None:
    sim = simulation(max_sequences=4)
    for number in range(2):
        sim.add(f"a {number}", prompt(8, first=number), asking(50), namespace=b"a")
    for number in range(6):
        sim.add(f"b {number}", prompt(8, first=10 + number), asking(50), namespace=b"b")

    sim.drain()

    assert sim.scheduler.counters.num_preemptions == 0


def test_within_a_tenant_urgent_requests_start_first() -> None:
    sim = simulation(max_sequences=1)
    for number, priority in enumerate([0, 5, -5, 0]):
        sim.add(str(number), prompt(8, first=number), asking(2), queue_priority=priority)

    assert started(sim) == ["2", "0", "3", "1"]


def test_a_priority_says_nothing_to_other_tenants() -> None:
    sim = simulation(max_sequences=1)
    sim.add("a 0", prompt(8, first=0), asking(2), namespace=b"a", queue_priority=-100)
    sim.add("a 1", prompt(8, first=1), asking(2), namespace=b"a", queue_priority=-100)
    sim.add("b 0", prompt(8, first=2), asking(2), namespace=b"b", queue_priority=100)

    assert started(sim) == ["a 0", "b 0", "a 1"]


def test_who_has_most_in_the_cache_starts_first_of_equals() -> None:
    sim = simulation(max_sequences=1)
    sim.add("warm", prompt(20, first=3), asking(1))
    sim.drain()
    sim.add("cold", prompt(24, first=4), asking(1))
    sim.add("hot", [*prompt(20, first=3), 5, 5, 5, 5], asking(1))
    sim.add("lukewarm", [*prompt(9, first=3), 6, 6, 6, 6], asking(1))

    assert started(sim) == ["hot", "lukewarm", "cold"]


def test_while_answers_grow_a_step_keeps_to_its_budget() -> None:
    """Each answer grows by one token however many there are, and prompts get on by what is left."""
    sim = simulation(max_batch_tokens=128)
    sim.budget = 80
    sim.add("old", prompt(100, first=0), asking(20))
    first = sim.step()
    sim.add("new", prompt(330, first=1), asking(1))
    sim.step()  # the step in which it is admitted

    def sizes(step: Step | None) -> list[int]:
        assert step is not None
        return [span.end - span.start for span in step.spans]

    assert sizes(first) == [100]
    assert [sizes(sim.step()) for _ in range(3)] == [[1, 79]] * 3


def sizes_of(step: Step | None) -> list[int]:
    assert step is not None
    return [span.end - span.start for span in step.spans]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 128),
        ([100], 128),
        ([75] * 8, 300),
        ([75] * 8 + [8000], 364),  # a long one counts as one of 128
        ([8000] * 4, 256),
    ],
)
def test_half_of_what_waits_fills_a_step(sizes: list[int], expected: int) -> None:
    assert enough_of_prompts(sizes) == expected


@pytest.mark.parametrize(
    ("size", "num_crowd", "expected"),
    [
        (136, 5, [[136] * 3, [1] * 3 + [136] * 2, [1] * 5 + [1019], [1] * 5 + [181]]),
        # Beside five answers a third one fits into the second step.
        (140, 8, [[140] * 5, [1] * 5 + [140] * 3, [1] * 8 + [1016], [1] * 8 + [184]]),
    ],
)
def test_prompts_that_wait_for_each_other_get_on_in_smaller_steps(
    size: int, num_crowd: int, expected: list[list[int]]
) -> None:
    """The first are ready after one step and not at the end; a long one takes whole steps."""
    sim = simulation(1000, max_batch_tokens=1024, max_sequences=16)
    for number in range(num_crowd):
        sim.add(f"crowd {number}", prompt(size, first=number), asking(9))
    sim.add("long", prompt(1200, first=99), asking(1))
    found = [sizes_of(sim.step()) for _ in range(4)]

    assert found == expected


def test_a_budget_below_the_answers_still_lets_prompts_get_on() -> None:
    sim = simulation(max_batch_tokens=128)
    sim.budget = 1
    sim.add("old", prompt(4, first=0), asking(20))
    sim.step()
    sim.add("new", prompt(200, first=1), asking(1))

    while ("new", 0) not in sim.ends:
        step = sim.step()
        assert step is not None
        assert "old" in {span.sequence.request_id for span in step.spans}
        assert step.num_tokens <= 1 + 64
    assert ("old", 0) not in sim.ends


def test_what_arrives_while_a_step_runs_is_admitted_before_it_ends() -> None:
    sim = simulation()
    sim.add("old", prompt(8, first=0), asking(5))

    sim.step(lambda: sim.add("new", prompt(8, first=1), asking(1)))

    assert [sequence.request_id for sequence in sim.scheduler.running] == ["old", "new"]
    step = sim.step()
    assert step is not None
    assert {span.sequence.request_id for span in step.spans} == {"old", "new"}


def test_a_tenants_queue_is_full_by_count_and_by_tokens() -> None:
    """Of those that have not begun; one request may always wait, however long it is."""
    sim = simulation(max_waiting=2, max_waiting_tokens=50)
    full = sim.scheduler.admission.is_full
    account = account_of(b"a")
    assert not full(account, 1000)

    sim.add("0", prompt(30, first=0), asking(1), namespace=b"a")
    assert full(account, 21)
    assert not full(account, 20)
    sim.add("1", prompt(10, first=1), asking(1), namespace=b"a")
    assert full(account, 1)
    assert not full(account_of(b"b"), 1)
    sim.step()
    assert not full(account, 1)


def test_what_has_waited_too_long_is_let_go() -> None:
    """But not what has begun, even if it had to give way since."""
    sim = simulation(max_sequences=1, max_wait_seconds=3.0)
    sim.add("runs", prompt(8, first=0), asking(30))
    sim.add("late", prompt(8, first=1), asking(1))
    for _ in range(4):
        sim.step()
        assert sim.scheduler.expire(sim.now - 1) == []
    assert sim.scheduler.expire(sim.now) == ["late"]
    sim.drain()

    assert list(sim.ends) == [("runs", 0)]


def test_small_requests_of_others_cannot_keep_a_large_one_out() -> None:
    """They keep the pool full for ever; after the limit nobody starts before the large one does."""
    sim = simulation(24, max_batch_tokens=64, max_sequences=8, max_overtaken=4)
    num_small = num_when_large_came = 0
    while ("large", 0) not in sim.ends:
        while sum(name.request_id != "large" for name in sim.scheduler.admission.waiting) < 4:
            sim.add(f"small {num_small}", prompt(8, first=num_small), asking(10), namespace=b"b")
            num_small += 1
        sim.step()
        if sim.now == 6.0:
            sim.add("large", prompt(80, first=1000), asking(2), namespace=b"a")
            num_when_large_came = len(sim.ends)
    assert len(sim.ends) - num_when_large_came < 30


def test_nobody_pays_for_what_it_had_while_alone() -> None:
    """One tenant worked for long, then all was idle; another came, and then the first again."""
    sim = simulation(max_sequences=1)
    for number in range(60):
        sim.add(f"old {number}", prompt(20, first=number), asking(5), namespace=b"a")
    sim.drain()
    for number in range(30):
        sim.add(f"new {number}", prompt(20, first=100 + number), asking(5), namespace=b"b")
    sim.step()
    sim.add("back", prompt(20, first=99), asking(5), namespace=b"a")
    sim.ends.clear()

    while ("back", 0) not in sim.ends:
        sim.step()

    assert len(sim.ends) <= 3


def test_no_place_is_made_again_and_again_for_one_that_lacks_blocks() -> None:
    sim = simulation(20, max_sequences=2)
    for number in range(2):
        sim.add(f"b {number}", prompt(12, first=number), asking(24), namespace=b"b")
    for _ in range(4):
        sim.step()
    sim.add("large", prompt(56, first=9), asking(2), namespace=b"a")

    sim.drain()

    assert sim.scheduler.counters.num_preemptions <= 3


def test_a_weighed_prompt_that_is_cached_ends_though_it_fills_most_of_the_pool() -> None:
    """All of it is computed again beside what is cached; where that is too much, from what was told on."""
    sim = simulation(10, max_batch_tokens=8)
    text = prompt(30, first=0)
    sim.add("before", text, asking(1))
    sim.drain()
    sim.add("weighed", text, SamplingParams(max_tokens=2, prompt_logprobs=0))

    for _ in range(30):
        sim.step()

    assert ("weighed", 0) in sim.ends
    assert len(sim.prompt_weights["weighed"]) == 29
