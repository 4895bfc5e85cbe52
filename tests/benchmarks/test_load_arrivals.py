"""What is asked and when: seeded, in order, and the bytes that it always was."""

import hashlib
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.arrivals import poisson, scaled
from benchmarks.load.client import Server
from benchmarks.load.conversations import SHAPES, Shape, converse
from benchmarks.load.recorded import read_trace, replayed
from benchmarks.load.texts import plain_text
from benchmarks.traces import BadTrace


@given(st.floats(0.01, 1000), st.integers(0, 50), st.text(max_size=5))
def test_arrivals_rise_and_a_seed_makes_the_same(rate: float, count: int, seed: str) -> None:
    times = poisson(rate, count, seed)

    assert len(times) == count
    assert all(earlier < later for earlier, later in pairwise([0.0, *times]))
    assert poisson(rate, count, seed) == times
    assert count == 0 or poisson(rate, count, seed + "x") != times


def test_gaps_are_exponential_with_the_rates_mean() -> None:
    times = poisson(4.0, 20_000, "s")
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]

    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.03)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(2.71828**-1, abs=0.015)
    assert sum(gap > 0.75 for gap in gaps) / len(gaps) == pytest.approx(2.71828**-3, abs=0.01)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.floats(0.1, 100))
def test_a_trace_begins_at_once_and_is_played_as_fast_as_asked(times: list[float], speed: float) -> None:
    found = scaled(times, speed)

    assert list(found) == pytest.approx([(time - min(times)) / speed for time in sorted(times)], abs=1e-6)


def test_a_chat_sends_the_bytes_that_published_figures_were_measured_with() -> None:
    shape = Shape(num_conversations=3, num_turns=4, think=0.01)
    server = Server("http://a/v1", "m", extra={"top_k": 1})
    bodies = []
    for conversation in converse(shape, "a1"):
        messages = [{"role": "system", "content": conversation.system}]
        for turn in conversation.turns:
            messages.append({"role": "user", "content": turn.text})
            bodies.append(server.body(messages, turn.num_answer))
            messages.append({"role": "assistant", "content": " word é"})

    digest = hashlib.sha256(b"".join(sorted(bodies))).hexdigest()

    assert digest == "28d2b4e9455bcfae76ee9f25c305c134c8007b486ca743447af1a3c77b029941"


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_seed_asks_the_same_and_another_something_else(name: str) -> None:
    shape = SHAPES[name]

    assert converse(shape, "a") == converse(shape, "a")
    assert not {each.turns for each in converse(shape, "a")} & {each.turns for each in converse(shape, "b")}


def test_conversations_share_a_few_system_prompts_in_turn() -> None:
    found = converse(Shape(num_conversations=7, num_systems=3, system=20, user=5), "s")

    systems = [each.system for each in found]
    assert systems[0] == plain_text(random.Random("s"), 20)
    assert len(set(systems)) == 3
    assert systems == [systems[place % 3] for place in range(7)]
    assert len({each.turns[0].text for each in found}) == 7


def test_a_shape_without_a_system_prompt_has_none() -> None:
    assert converse(SHAPES["long"], "s")[0].system == ""


def test_pauses_are_uniform_around_their_mean() -> None:
    shape = Shape(num_conversations=50, num_turns=40, user=1, system=0, think=2.0)
    pauses = [turn.pause for each in converse(shape, "s") for turn in each.turns]

    assert 0 <= min(pauses) < 0.1
    assert 3.9 < max(pauses) <= 4
    assert sum(pauses) / len(pauses) == pytest.approx(2.0, rel=0.05)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,30,5
2023-11-16 18:15:50.6805900,9000,5
2023-11-16 18:15:48.1805900,20,0
2023-11-16 18:15:47.1805900,20,7
2023-11-16 18:15:49.1805900,10,3
"""
MOONCAKE = """{"timestamp": 2000, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}

{"timestamp": 2500, "input_length": 700, "output_length": 5, "hash_ids": [0, 2]}
{"timestamp": 2500, "input_length": 520, "output_length": 6, "hash_ids": [3, 1]}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_azures_trace_is_read_in_the_order_of_time_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    found = read_trace(write(tmp_path / "a.csv", AZURE), count=3, longest=1000)

    assert [(each.num_prompt, each.num_answer) for each in found] == [(30, 5), (20, 7), (10, 3)]
    assert scaled([each.time for each in found], 2.0) == pytest.approx((0.0, 0.25, 1.25))
    prompts = [each.turns[0].text.split(" ") for each in replayed(found, "s")]
    assert [len(words) for words in prompts] == [30, 20, 10]
    assert prompts[0][:10] != prompts[1][:10]


def test_mooncakes_prompts_share_what_their_blocks_share(tmp_path: Path) -> None:
    found = read_trace(write(tmp_path / "a.jsonl", MOONCAKE), count=9)

    first, second, third = (each.turns[0].text.split(" ") for each in replayed(found, "s"))
    assert [each.turns[0].num_answer for each in replayed(found, "s")] == [4, 5, 6]
    assert (len(first), len(second), len(third)) == (600, 700, 520)
    assert first[:512] == second[:512]
    assert first[512:520] == third[512:]
    assert first[:512] != third[:512]
    assert first[512:] != second[512:600]
    assert replayed(found, "s") == replayed(found, "s") != replayed(found, "t")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "a,b\n1,2\n", "line 2: .* has no 'TIMESTAMP'"),
        ("b.csv", AZURE.replace("30", "x"), "line [0-9]+: .*'x'"),
        ("c.jsonl", "{}", "line 1: .* has no 'timestamp'"),
        ("d.jsonl", "\n[1]", "line 2"),
        ("e.jsonl", "no JSON", "line 1"),
        ("f.jsonl", "", "no request that fits"),
        ("g.jsonl", '{"timestamp": 0, "input_length": 0, "output_length": 1}', "no request that fits"),
        ("h.jsonl", '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "line 1: .*time is nan"),
    ],
)
def test_what_is_no_trace_says_so(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(BadTrace, match=rf"{name}.*{reason}"):
        read_trace(write(tmp_path / name, text), count=9)


def test_a_trace_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="No such file"):
        read_trace(tmp_path / "none.csv", count=1)
