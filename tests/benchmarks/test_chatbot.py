"""Serving in virtual time: latencies that can be worked out by hand, and what reuse and paging must bring."""

import json
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.azure import Lengths
from benchmarks.chatbot import LONGEST, chat, chat_turns, main, read_times, servers, single, sustained
from benchmarks.conversing import Arrival, Chats, normalized_latency, poisson, serve
from benchmarks.reservation import POLICIES, Room, first_gap
from benchmarks.virtual import Ended, PagedServer, Request, ReservedServer, Server, StepTimes

SECOND = StepTimes({1: 1.0}, 0.0)  # one token a second
EQUAL = StepTimes({1: 1.0, 1024: 1.0}, 0.0)  # every step takes a second
ORACLE = POLICIES["Oracle"]


def request(name: str, num_prompt: int, num_answer: int) -> Request:
    return Request(name, array("i", range(num_prompt)), num_answer, name.encode())


def ends(_ended: Ended, _now: float) -> None:
    return None


def both(times: StepTimes, num_slots: int) -> list[Server]:
    return [PagedServer(times, num_slots), ReservedServer(times, num_slots, ORACLE, LONGEST)]


def test_one_request_takes_its_steps_from_its_arrival() -> None:
    for server in both(EQUAL, 1024):
        latencies = serve(server, [Arrival(5.0, request("a", 10, 4))], ends)

        assert latencies == [1.0]
        assert server.clock.now == 9.0


def test_requests_that_fit_run_beside_each_other() -> None:
    for server in both(EQUAL, 1024):
        latencies = serve(server, [Arrival(0.0, request(name, 10, 4)) for name in "ab"], ends)

        assert latencies == [1.0, 1.0]


def test_who_finds_no_room_waits_for_it() -> None:
    server = ReservedServer(EQUAL, 30, ORACLE, LONGEST)

    assert serve(server, [Arrival(0.0, request(name, 16, 4)) for name in "ab"], ends) == [1.0, 2.0]


def test_a_prompt_is_computed_whole_and_then_a_token_a_step() -> None:
    for server in both(SECOND, 1024):
        serve(server, [Arrival(0.0, request("a", 10, 4))], ends)

        assert server.clock.now == 10 + 3


def test_tokens_that_are_seen_cost_too() -> None:
    times = StepTimes({1: 0.0, 1024: 0.0}, 1.0)
    for server in both(times, 1024):
        serve(server, [Arrival(0.0, request("a", 10, 3))], ends)

        assert server.clock.now == 10 + 11 + 12


def test_what_can_never_run_is_refused() -> None:
    for server in both(EQUAL, 32):
        with pytest.raises(ValueError, match=r"exceed|than there is"):
            server.submit(request("a", 40, 4))


def test_paging_holds_more_requests_than_reserving_the_most_that_may_be() -> None:
    lengths = [Lengths(100, 20)] * 12

    found = {name: single(make, lengths, 100.0, 1) for name, make in servers(EQUAL, LONGEST).items()}

    assert max(found["paged"], found["Oracle"]) < found["Max"]


def test_requests_come_at_the_rate_that_was_asked_for() -> None:
    arrivals = poisson([request(str(number), 1, 1) for number in range(4000)], 8.0, seed=3)

    assert arrivals[-1].time == pytest.approx(4000 / 8.0, rel=0.05)
    assert [each.time for each in arrivals] == sorted(each.time for each in arrivals)


def test_a_turn_resends_the_last_tokens_of_history_and_answer() -> None:
    turns = [Lengths(6, 3), Lengths(4, 3)]
    whole, last = (
        Chats(turns, 2, window=window, shares=True, think_seconds=1.0, seed=1) for window in (None, 5)
    )

    for chats, num_first, num_second in ((whole, 6, 6 + 3 + 4), (last, 5, 5)):
        (first,) = chats.first_turns()
        assert len(first.prompt) == num_first
        following = chats.follow(Ended(first.name, array("i", [7, 8, 9])), 10.0)
        assert following is not None
        assert following.time > 10.0
        assert len(following.request.prompt) == num_second
        assert following.request.prompt[-5] == 9  # the answer's last token, before the question's four
        assert chats.follow(Ended(following.request.name, array("i", [1])), 20.0) is None


def test_every_turn_is_answered_in_full() -> None:
    turns = [Lengths(20, 5)] * 12

    for make in servers(EQUAL, 4096).values():
        chats = Chats(turns, 4, window=64, shares=False, think_seconds=1.0, seed=1)
        assert len(serve(make(), poisson(chats.first_turns(), 1.0, 1), chats.follow)) == 12


def test_history_is_found_again_when_all_of_it_is_resent() -> None:
    server = PagedServer(SECOND, 8192)
    chats = Chats([Lengths(50, 10)] * 4, 4, window=None, shares=True, think_seconds=1.0, seed=1)

    serve(server, poisson(chats.first_turns(), 1.0, 1), chats.follow)

    counters = server.core.scheduler.counters
    # The last token of an answer was drawn and never computed.
    assert counters.num_computed_prompt_tokens == 50 + 3 * (50 + 1)


def test_reuse_is_never_slower_when_history_is_resent_whole() -> None:
    turns, make = [Lengths(60, 10)] * 8, partial(PagedServer, SECOND, 8192)

    with_reuse, without = (chat(make, turns, 0.01, 1, window=None, shares=shares) for shares in (True, False))

    assert with_reuse < without


def test_a_rate_is_sustained_until_latency_leaves_the_bound() -> None:
    curves = {"paged": [1.0, 1.5, 3.5, 2.0], "Max": [9.0, 9.0, 9.0, 9.0], "Oracle": [1.0, 1.0, 1.0, 1.0]}

    assert sustained(curves, [1, 2, 3, 4]) == {"paged": 2, "Max": 0.0, "Oracle": 4}


def test_questions_and_answers_fit_their_bounds() -> None:
    turns = chat_turns([Lengths(1, 5000)] * 2000, seed=1)

    assert all(1 <= each.num_prompt <= 1024 and each.num_answer == 1024 for each in turns)
    assert sum(each.num_prompt for each in turns) / 2000 == pytest.approx(161, rel=0.1)


def test_normalized_latency_is_the_mean_over_requests() -> None:
    assert normalized_latency([1.0, 2.0, 6.0]) == 3.0


def brute_gap(rooms: Sequence[Room], size: int, num_slots: int) -> int | None:
    taken = {slot for room in rooms for slot in range(room.start, room.start + room.size)}
    fits = [s for s in range(num_slots - size + 1) if not taken & set(range(s, s + size))]
    return fits[0] if fits else None


@given(st.lists(st.integers(1, 9), max_size=12), st.sets(st.integers(0, 11)), st.integers(1, 9))
def test_the_first_gap_is_the_first_that_is_large_enough(sizes: list[int], gone: set[int], size: int) -> None:
    rooms, place = [], 0
    for number, each in enumerate(sizes):
        if number not in gone and place + each <= 50:
            rooms.append(Room(place, each))
        place += each

    assert first_gap(rooms, size, 50) == brute_gap(rooms, size, 50)


def test_the_command_says_that_time_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"by_tokens": {"1": 0.01, "64": 0.02, "2048": 0.5}, "per_seen": 1e-6}
    told, data, out = (tmp_path / name for name in ("times.json", "azure.csv", "out.json"))
    told.write_text(json.dumps({"times": times}))
    data.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "x,50,10\n" * 16)

    arguments = ["--data", str(data), "--times", str(told), "--rates", "1", "4"]
    main([*arguments, "--plots", str(tmp_path), "--json", str(out)])

    assert "simulated time, from measured steps" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert len(figures["seconds_per_token"]["chatbot"]["paged, whole history, reuse"]) == 2
    assert (tmp_path / "chatbot-requests.svg").read_text().startswith("<svg")
    assert read_times(out).by_tokens == {1: 0.01, 64: 0.02, 2048: 0.5}
