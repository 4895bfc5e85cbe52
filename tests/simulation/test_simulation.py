"""Random requests over tiny pools: whatever happens around a request, it says what it would say alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestRefused
from engine.scheduler import Limits
from engine.sequence import BeamParams, SamplingParams
from prefix_cache.lease import Retention
from prefix_cache.quota import Quota
from tests.simulation.harness import (
    STOP,
    Simulation,
    answer_alone,
    prompt_weights_alone,
    search_alone,
)

BLOCK_SIZE = 4
MAX_TOKENS = 36  # of prompt and answer; the smallest pool holds just one such request
SHARED_START = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


beams = st.builds(
    BeamParams,
    width=st.integers(1, 3),
    length_penalty=st.sampled_from([0.0, 1.0, 2.0, -1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)


@st.composite
def requests(draw: st.DrawFn) -> dict:
    """A request whose prompt often shares its start with others, at any token of a block."""
    start = SHARED_START[: draw(st.integers(0, len(SHARED_START)))]
    prompt = (start + draw(st.lists(st.integers(0, 2), max_size=10))) or [0]
    beam = draw(st.none() | st.none() | beams)
    sampling = SamplingParams(
        max_tokens=draw(st.integers(0, MAX_TOKENS - len(prompt)) if beam is None else st.integers(1, 4)),
        min_tokens=0 if beam is not None else draw(st.sampled_from([0, 3])),
        stop_token_ids=draw(st.sampled_from([(), (STOP,)])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        beam=beam,
    )
    choices = draw(st.sampled_from([1, 1, 1, 3]) if beam is None else st.integers(1, beam.width))
    return {
        "prompt": prompt,
        "sampling": sampling,
        "choices": choices,
        "queue_priority": draw(st.integers(-1, 1)),
        "namespace": draw(st.sampled_from([b"a", b"b"])),
        "retention": draw(
            st.builds(Retention, is_side=st.sampled_from([False, False, True]), priority=st.integers(-1, 1))
        ),
        "arrives": draw(st.integers(0, 12)),
        "leaves": draw(st.sampled_from([None, None, None, *range(14)])),
        "leaving_choice": draw(st.sampled_from([None, None, 0, 1] if beam is None else [None])),
        "leaves_in_flight": draw(st.booleans()),
    }


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    limits = Limits(
        max_batch_tokens=draw(st.integers(4, 24)), max_sequences=draw(st.integers(1, 4)), max_overtaken=2
    )
    least = MAX_TOKENS // BLOCK_SIZE
    num_blocks = draw(st.integers(least, 30))
    floors = draw(st.integers(0, num_blocks - least))
    ceiling = draw(st.sampled_from([None, None, least, 12]))
    return Simulation(
        num_blocks,
        BLOCK_SIZE,
        limits,
        quotas={b"a": Quota(floor_blocks=floors), b"b": Quota(ceiling_blocks=ceiling)},
        max_request_tokens=MAX_TOKENS,
        num_host_blocks=draw(st.sampled_from([0, 0, 5, 20])),
        num_disk_blocks=draw(st.sampled_from([0, 0, 5, 20])),
        copies_per_step=draw(st.integers(1, 6)),
        swap=draw(st.sampled_from(["auto", "always", "never"])),
        weights={b"a": draw(st.sampled_from([1.0, 0.5, 3.0]))},
        max_lookahead=draw(st.sampled_from([0, 0, 3])),
        budget=draw(st.sampled_from([None, 1, 9])),
        park_after=draw(st.sampled_from([None, 1.0, 4.0])),
    )


def play(simulation: Simulation, load: list[dict]) -> None:
    """Arrivals and departures at their times, before a step or while it is in flight; then run dry."""

    def leave(time: int, in_flight: bool) -> None:
        for number, request in enumerate(load):
            if request["leaves"] == time and request["leaves_in_flight"] == in_flight:
                simulation.scheduler.abort(str(number), request["leaving_choice"], simulation.now)
                simulation.scheduler.check_invariants()

    for time in range(14):
        for number, request in enumerate(load):
            if request["arrives"] == time:
                simulation.add(
                    str(number),
                    request["prompt"],
                    request["sampling"],
                    choices=request["choices"],
                    namespace=request["namespace"],
                    retention=request["retention"],
                    queue_priority=request["queue_priority"],
                )
        leave(time, in_flight=False)
        simulation.step(lambda time=time: leave(time, in_flight=True))
    simulation.drain()
    simulation.settle()


@given(simulations(), st.lists(requests(), min_size=1, max_size=8))
def test_every_request_says_what_it_would_say_alone(simulation: Simulation, load: list[dict]) -> None:
    """And all blocks come home; a sequence that was told to leave says the beginning of that, or nothing."""
    load = [request for request in load if can_run(simulation, request)]
    play(simulation, load)

    for number, request in enumerate(load):
        answers = answers_alone(request)
        for choice, (alone, reason) in enumerate(answers):
            said = simulation.answers.get((str(number), choice), [])
            if request["leaves"] is None or request["leaving_choice"] not in (None, choice):
                assert (said, simulation.ends[str(number), choice]) == (alone, reason)
            else:
                assert said == alone[: len(said)]
        check_prompt_weights(simulation, str(number), request)
    for tree in (simulation.cache.device, *simulation.cache.colder):
        assert tree.ledger.num_held == 0
        assert not any(node.is_passing for node in tree.nodes())


def can_run(simulation: Simulation, request: dict) -> bool:
    """Whether the scheduler takes the request; it takes all but searches that are too wide for the pool."""
    scheduler = Simulation.__new__(Simulation)
    scheduler.__dict__.update(simulation.__dict__)
    scheduler.boot()
    try:
        scheduler.add(
            "probe",
            request["prompt"],
            request["sampling"],
            choices=request["choices"],
            namespace=request["namespace"],
        )
    except RequestRefused:
        assert request["sampling"].beam is not None
        return False
    return True


def answers_alone(request: dict) -> list[tuple[list[int], str]]:
    prompt, sampling, choices = request["prompt"], request["sampling"], request["choices"]
    if sampling.beam is not None:
        return search_alone(prompt, sampling, choices)
    return [answer_alone(prompt, sampling, choice) for choice in range(choices)]


def check_prompt_weights(simulation: Simulation, name: str, request: dict) -> None:
    """All that were asked for, once each; or the first ones, of a request that left."""
    told = simulation.prompt_weights.get(name, [])
    alone = prompt_weights_alone(request["prompt"]) if request["sampling"].prompt_logprobs is not None else []
    assert told == alone[: len(told)]
    if request["leaves"] is None:
        assert len(told) == len(alone)


@given(simulations(), st.lists(requests(), min_size=1, max_size=5), st.integers(1, 12))
def test_what_is_found_after_a_crash_is_what_was_computed(
    simulation: Simulation, load: list[dict], crash_at: int
) -> None:
    """The process ends in the middle of whatever moves; everybody asks again."""
    for request in load:
        request["sampling"] = replace(request["sampling"], beam=None)
    for number, request in enumerate(load):
        simulation.add(f"before {number}", request["prompt"], request["sampling"])
    for _ in range(crash_at):
        simulation.step()
    simulation.crash()

    for number, request in enumerate(load):
        simulation.add(f"after {number}", request["prompt"], request["sampling"])
    simulation.drain()

    for number, request in enumerate(load):
        alone, reason = answer_alone(request["prompt"], request["sampling"], 0)
        key = (f"after {number}", 0)
        assert (simulation.answers[key], simulation.ends[key]) == (alone, reason)


@given(simulations(), st.lists(requests(), min_size=1, max_size=5))
def test_counted_tokens_are_the_tokens_computed(simulation: Simulation, load: list[dict]) -> None:
    """Every token of a prompt is either found in the cache or computed, where nothing was preempted or
    forked.
    """
    for request in load:
        request["leaves"], request["choices"] = None, 1
        max_tokens = max(request["sampling"].max_tokens, 1)
        request["sampling"] = replace(request["sampling"], beam=None, max_tokens=max_tokens)
    simulation.max_lookahead = 0
    simulation.boot()
    play(simulation, load)

    counters = simulation.scheduler.counters
    assert counters.num_prompt_tokens == sum(len(request["prompt"]) for request in load)
    if not counters.num_preemptions:
        assert counters.num_computed_prompt_tokens + counters.num_cached_tokens == counters.num_prompt_tokens
        num_decoded = counters.num_generated_tokens - len(load)
        assert simulation.runner.num_computed == counters.num_computed_prompt_tokens + num_decoded
