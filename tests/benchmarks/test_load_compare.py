"""Comparing servers: their order, ratios of pairs, the table, and the flags that name them."""

import argparse

import pytest

from benchmarks.load.client import Server
from benchmarks.load.comparison import comparison_table
from benchmarks.load.options import BadOptions
from benchmarks.load.report import FLAT
from benchmarks.load.rounds import Spread, compare, order, spread
from benchmarks.load.servers import add_servers, commands_of, servers_of


def test_servers_take_turns() -> None:
    assert order(["a", "b"], 2) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_a_spread_is_of_the_values_that_there_are() -> None:
    assert spread([3.0, None, 1.0, 5.0]) == Spread(3.0, 1.0, 5.0)
    assert spread([None]) is None


def test_ratios_are_of_pairs_not_of_medians() -> None:
    rounds = {"a": [{"x": 1.0}, {"x": 10.0}, {"x": 2.0}], "b": [{"x": 3.0}, {"x": 10.0}, {"x": 1.0}]}

    found = compare(rounds)["x"]

    assert found["a"].values == Spread(2.0, 1.0, 10.0)
    assert found["b"].values == Spread(3.0, 1.0, 10.0)
    assert found["b"].ratios == Spread(1.0, 0.5, 3.0)
    assert found["a"].ratios is None


def test_a_pair_with_a_gap_has_no_ratio() -> None:
    found = compare({"a": [{"x": None}, {"x": 0.0}, {"x": 2.0}], "b": [{"x": 1.0}, {"x": 1.0}, {"x": 3.0}]})

    assert found["x"]["b"].ratios == Spread(1.5, 1.5, 1.5)


def test_the_table_has_each_figure_that_somebody_has() -> None:
    figures = {**dict.fromkeys(FLAT), "tokens_per_second": 100.0, "hit_rate": 0.5}

    lines = comparison_table(compare({"a": [figures], "bb": [{**figures, "hit_rate": None}]})).splitlines()

    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")] == [
        "median (least to greatest)",
        "output tokens/s",
        "prompt tokens from the cache, share",
    ]
    assert lines[1].split("   ")[-1].strip() == "100.0 (100.0 to 100.0)"
    assert lines[2].split("   ")[-1].strip() == "1.00 (1.00 to 1.00)"
    assert len({line.index("a") for line in lines[:1]}) == 1


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_servers(parser)
    return argparse.Namespace(**vars(parser.parse_args(arguments)), timeout=9.0)


def test_flags_name_servers_and_what_belongs_to_each() -> None:
    options = parsed(
        *("--server", "a=http://x/v1@m", "--server", "b=http://y:1/v1/@org/n"),
        *("--extra", 'b={"k": "a=b"}', "--key", "a=s=1", "--no-ignore-eos", "b", "--start", "b=run --x=1"),
    )

    assert servers_of(options) == {
        "a": Server("http://x/v1", "m", "s=1", {}, True, 9.0),
        "b": Server("http://y:1/v1", "org/n", "none", {"k": "a=b"}, False, 9.0),
    }
    assert commands_of(options) == {"b": "run --x=1"}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--server", "a=http://x/v1"],
        ["--server", "a=x@m"],
        ["--server", "a=http://x/v1@m", "--server", "a=http://y/v1@m"],
        ["--server", "a=http://x/v1@m", "--extra", "a=[1]"],
        ["--server", "a=http://x/v1@m", "--extra", "b={}"],
        ["--server", "a=http://x/v1@m", "--no-ignore-eos", "b"],
    ],
)
def test_flags_that_name_no_server_are_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOptions):
        servers_of(parsed(*arguments))


def test_a_command_for_no_server_is_refused() -> None:
    with pytest.raises(BadOptions, match="'b'"):
        commands_of(parsed("--server", "a=http://x/v1@m", "--start", "b=run"))
