"""The simulator: known counts on traces made by hand, the best that can be had, and the command."""

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chart import line_chart
from benchmarks.clairvoyant import clairvoyant
from benchmarks.replay import paths_of, replay, turns_of
from benchmarks.simulate import main
from benchmarks.traces import BadTrace, Request, read_mooncake, read_usage
from benchmarks.workloads import MIXES, make_mix
from prefix_cache.eviction import LeastRecentlyUsed
from prefix_cache.learned import Learned
from prefix_cache.tokens import pack


def requests(*prompts: list[int]) -> list[Request]:
    return [Request(float(number), pack(names)) for number, names in enumerate(prompts)]


def test_a_loop_one_block_too_long_defeats_recency_and_not_foresight() -> None:
    trace = requests(*([[1], [2], [3]] * 4))

    assert sum(replay(trace, 2, LeastRecentlyUsed())) == 0
    assert sum(clairvoyant(paths_of(trace), 2)) == 5


def test_hits_are_leading_blocks_and_the_last_one_may_be_found_too() -> None:
    trace = requests([1, 2, 3], [1, 2, 4], [1, 2, 3])

    assert replay(trace, 9, LeastRecentlyUsed()) == [0, 2, 3]
    assert replay(trace, 3, LeastRecentlyUsed()) == [0, 2, 2]
    assert clairvoyant(paths_of(trace), 3) == [0, 2, 2]


def test_a_request_longer_than_the_cache_is_skipped() -> None:
    trace = requests([1, 2], [1, 2, 3], [1, 2])

    assert replay(trace, 2, LeastRecentlyUsed()) == [0, 0, 2]
    assert clairvoyant(paths_of(trace), 2) == [0, 0, 2]


def test_foresight_does_not_wait_for_a_request_that_is_skipped() -> None:
    trace = requests([2], [2, 1, 1, 1, 1], [1], [3, 1, 1], [1])

    assert sum(clairvoyant(paths_of(trace), 4)) == 1


def test_equal_names_after_different_ones_are_different_blocks() -> None:
    assert paths_of(requests([1, 7], [2, 7], [1, 7])) == [[0, 1], [2, 3], [0, 1]]


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), max_size=25),
    st.integers(1, 12),
    st.sampled_from(["lru", "learned"]),
)
def test_no_policy_finds_more_than_foresight(prompts: list[list[int]], num_blocks: int, name: str) -> None:
    trace = requests(*prompts)
    policy = LeastRecentlyUsed() if name == "lru" else Learned(num_blocks, 1)

    found = sum(replay(trace, num_blocks, policy))

    assert found <= sum(clairvoyant(paths_of(trace), num_blocks))


def test_turns_follow_a_conversation_and_not_what_many_begin_with() -> None:
    paths = [[0, 1, 2], [0, 1, 3, 4, 5], [0, 6, 7], [0, 1, 3, 4, 8, 9], [0, 10]]

    assert turns_of(paths) == [1, 2, 1, 3, 1]
    assert turns_of([[0, 1], [0, 2, 3], [0, 4, 5]]) == [1, 2, 1]


@pytest.mark.parametrize("name", sorted(MIXES))
def test_a_mix_is_the_same_for_the_same_seed_and_in_order(name: str) -> None:
    mix = make_mix(name, seed=3)

    assert mix == make_mix(name, seed=3) != make_mix(name, seed=4)
    assert [item.time for item in mix] == sorted(item.time for item in mix)
    assert all(item.num_blocks > 0 for item in mix)


def write_trace(path: Path) -> Path:
    rows = [
        {"timestamp": 1000 * number, "input_length": 1024, "hash_ids": [0, number % 5 + 1]}
        for number in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_prints_a_table_a_size_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, plot = write_trace(tmp_path / "a.jsonl"), tmp_path / "a.svg"

    code = main(["--trace", str(trace), "--blocks", "2", "--times", "1", "3", "--plot", str(plot)])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("20 requests, 40 blocks, 6 different ones\n")
    small, large = out.split("\n6 blocks")
    assert f"lru           47.50%{19 * 512:15,}" in small
    assert "clairvoyant" in small
    assert f"learned       85.00%{34 * 512:15,}" in large
    assert plot.read_text().count("<polyline") == 4


def test_limit_and_policy_are_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "a.jsonl")

    main(["--trace", str(trace), "--blocks", "6", "--limit", "7", "--policy", "learned"])

    out = capsys.readouterr().out
    assert out.startswith("7 requests")
    assert "lru" not in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}\n", "a.jsonl:1"),
        ("\nno\n", "a.jsonl:2"),
        ("\xff\xfe\n", "a.jsonl:1"),
        ("", "no request that asks for a block"),
        ('{"timestamp": 0, "hash_ids": []}\n', "no request that asks for a block"),
    ],
)
def test_a_bad_trace_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(text.encode("latin-1"))

    assert main(["--trace", str(tmp_path / "a.jsonl"), "--blocks", "4"]) == 1

    assert said in capsys.readouterr().err


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none\.jsonl"):
        list(read_mooncake(tmp_path / "none.jsonl"))
    with pytest.raises(BadTrace, match="no such file"):
        read_usage(str(tmp_path / "none.sqlite3"))


def write_usage(path: Path, rows: list[tuple[str, bytes | None]]) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE usage (id INTEGER PRIMARY KEY, created_at DATETIME, prefix_trace BLOB)")
    connection.executemany("INSERT INTO usage (created_at, prefix_trace) VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def test_the_log_of_usage_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = write_usage(
        tmp_path / "a.sqlite3",
        [
            ("2026-01-01 00:00:09.500000", pack([1, 2])),
            ("2026-01-01 00:00:05.000000", pack([1])),
            ("2026-01-01 00:00:07.000000", None),
        ],
    )

    by_file, by_url = read_usage(str(path)), read_usage(f"sqlite+aiosqlite:///{path}")

    assert [item.names for item in by_file] == [pack([1]), pack([1, 2])]
    assert by_file[1].time - by_file[0].time == 4.5
    assert by_url == by_file


def test_a_log_without_traces_says_so(tmp_path: Path) -> None:
    path = write_usage(tmp_path / "a.sqlite3", [("2026-01-01 00:00:00.000000", None)])
    with pytest.raises(BadTrace, match="prefix_trace"):
        read_usage(str(path))
    (tmp_path / "b.sqlite3").touch()
    with pytest.raises(BadTrace, match="no such table"):
        read_usage(str(tmp_path / "b.sqlite3"))


def test_a_chart_has_a_line_a_name_and_escapes_names() -> None:
    chart = line_chart([1, 2], {"a<b": [0.0, 0.5], "c": [0.5, 1.0]})

    assert "a&lt;b" in chart
    assert chart.count("<circle") == 4
    assert 'points="60.0,350.0 490.0,185.0"' in chart


def test_a_chart_leaves_out_what_is_not_known() -> None:
    chart = line_chart([1, 2, 3], {"a": [1.0, None, 1.0]}, x_label="n", write="{:.0f} x".format)

    assert chart.count("<circle") == 2
    assert 'points="60.0,20.0 490.0,20.0"' in chart
    assert ">1 x</text>" in chart
