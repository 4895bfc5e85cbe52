"""The commands `stemma bench serve` and `stemma bench compare`, against stubs and against the gateway."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from benchmarks.compare import main as compare
from benchmarks.serve import main as serve
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.settings import Settings
from tests.benchmarks.stub_server import Asked, StubServer, answer, chunked, stub_server, text
from tests.benchmarks.test_load_client import DONE, plain
from tests.fakes import ByteTokenizer, Script, ScriptedEngine, engine_info
from tests.live import live_server, scripted_services


def say(asked: Asked) -> list[bytes]:
    return answer(*["word"] * asked.body["max_tokens"], cached=5 * (len(asked.body["messages"]) > 2))


def short(stub: StubServer) -> list[str]:
    return ["--url", stub.url, "--model", "m", "--users", "2", "--system", "5", "--user", "3", "--out", "4"]


def test_a_run_prints_its_figures_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, figures = tmp_path / "a.svg", tmp_path / "a.json"
    with stub_server(say) as stub:
        code = serve(
            [
                *(*short(stub), "--turns", "3", "--target-ttft", "9000", "--target-tpot", "9000"),
                *("--json", str(figures), "--plot", str(plot)),
            ]
        )

    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    lines = {line.partition("  ")[0]: line.split() for line in out.splitlines()}
    assert lines["first token, first turn"][4] == "2"
    assert lines["first token, later turns"][4] == "4"
    assert lines["between tokens, each gap"][4] == "18"
    assert "24 answered of 24 asked for" in out
    assert "100.0% of those sent: first token within 9000 ms, tokens every 9000 ms" in out
    assert lines["from the cache"][3] == "33.3%"
    assert lines["failed"] == ["failed", "0"]
    told = json.loads(figures.read_text())
    assert (told["sent"], told["tokens"], told["hit_rate"], told["good_share"]) == (6, 24, 1 / 3, 1.0)
    assert told["first_token_later_turns"]["n"] == 4
    assert told["end_to_end"]["p50"] <= told["end_to_end"]["p99"]
    assert ElementTree.fromstring(plot.read_text()).tag.endswith("svg")


def test_tokens_that_are_counted_events_are_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One conversation of two turns, and only the first answer has usage."""
    figures = tmp_path / "a.json"

    def script(asked: Asked) -> list[bytes]:
        return say(asked) if asked.number == 0 else chunked(text("a"), text("b", "length"), DONE)

    with stub_server(script) as stub:
        code = serve([*short(stub), "--users", "1", "--turns", "2", "--json", str(figures)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.split()[:3] for line in lines if line.startswith("without")] == [["without", "usage", "1"]]
    assert json.loads(figures.read_text())["answers_without_usage"] == 1


def test_failures_are_printed_by_kind_and_end_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def script(asked: Asked) -> list[bytes]:
        return plain("429 Too Many", b'{"error":\n "slow down"}') if asked.number == 1 else say(asked)

    with stub_server(script) as stub:
        code = serve([*short(stub), "--turns", "2"])

    out = capsys.readouterr().out
    assert code == 1
    assert 'HTTP 429: {"error": "slow down"}' in out
    assert "not sent                         1" in out
    assert "2 answered of 3 sent" in out


@pytest.mark.parametrize(
    ("flags", "num_asked"),
    [
        (["--workload", "shared", "--conversations", "5"], 5),
        (["--workload", "long", "--conversations", "3"], 3),
        (["--workload", "burst", "--conversations", "5"], 5),
        (["--turns", "2", "--warmup", "3"], 7),
    ],
)
def test_every_workload_asks_what_it_says(flags: list[str], num_asked: int) -> None:
    with stub_server(say) as stub:
        code = serve([*short(stub), *flags])

    assert code == 0
    assert len(stub.asked) == num_asked


def test_a_rate_is_an_open_loop(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(say) as stub:
        code = serve(
            ["--url", stub.url, "--model", "m", "--rate", "200", "--conversations", "6", "--turns", "1"]
        )

    assert code == 0
    assert len(stub.asked) == 6
    assert "6 answered of 6 sent" in capsys.readouterr().out


def test_a_trace_is_replayed_with_its_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    rows = [f"2023-11-16 18:15:4{number}.5,{10 + number},{1 + number}" for number in range(5)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    with stub_server(say) as stub:
        address = ["--url", stub.url, "--model", "m"]
        played = [*address, "--workload", "trace", "--data", str(trace), "--speed", "50", "--requests", "3"]
        code = serve(played)

    assert code == 0
    assert [asked.body["max_tokens"] for asked in stub.asked] == [1, 2, 3]
    assert [len(asked.body["messages"][0]["content"].split()) for asked in stub.asked] == [10, 11, 12]


def test_the_fields_of_a_body_can_be_changed() -> None:
    with stub_server(say) as stub:
        serve([*short(stub), "--turns", "1", "--no-ignore-eos", "--extra", '{"seed": 1}', "--key", "k"])

    assert all("ignore_eos" not in asked.body and asked.body["seed"] == 1 for asked in stub.asked)
    assert all("Bearer k\r\n" in asked.head for asked in stub.asked)


@pytest.mark.parametrize(
    "flags",
    [
        ["--rate", "1", "--users", "2"],
        ["--rate", "0"],
        ["--workload", "burst", "--rate", "1"],
        ["--workload", "trace"],
        ["--workload", "trace", "--data", "x", "--turns", "2"],
        ["--data", "x"],
        ["--speed", "2"],
        ["--users", "0"],
        ["--system", "-1"],
        ["--extra", "[]"],
        ["--url", "localhost"],
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        serve(["--url", "http://127.0.0.1:1/v1", "--model", "m", *flags])

    assert left.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--users", "0"], "--users: 0 is less than 1"),
        (["--system", "-1"], "--system: -1 is less than 0"),
        (["--rate", "nan"], "--rate: nan is not a number above 0"),
        (["--think", "-1"], "--think: -1 is not a number from 0 up"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        serve(["--url", "http://127.0.0.1:1/v1", "--model", "m", *flags])

    assert reason in capsys.readouterr().err


def test_figures_and_their_plot_are_not_written_into_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--json", str(tmp_path / "a"), "--plot", f"{tmp_path}/./a"]

    for main, servers in (
        (serve, ["--url", "http://127.0.0.1:1/v1", "--model", "m"]),
        (compare, ["--server", "a=http://127.0.0.1:1/v1@m", "--server", "b=http://127.0.0.1:2/v1@m"]),
    ):
        with pytest.raises(SystemExit) as left:
            main([*servers, *both])
        assert left.value.code == 2
        assert "--json and --plot name one file: take two" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "flags",
    [["--workload", "trace", "--data", "/none.csv"], ["--warmup", "1"]],
)
def test_what_cannot_begin_is_one_line_and_code_1(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(["--url", "http://127.0.0.1:1/v1", "--model", "m", *flags]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("serve: ")
    assert err.count("\n") == 1


def test_the_gateway_itself_is_measured_with_what_it_found_cached(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = ByteTokenizer()
    prompts = Prompts(
        TextModel(tokenizer, ChatTemplate(CHATML), (tokenizer.special_tokens["<|im_end|>"],)),
        transcript_bytes=1 << 20,
    )
    engine = ScriptedEngine(
        [Script([tokenizer.id_of("a")] * 9)], info=engine_info(max_request_tokens=8192), num_cached_tokens=7
    )
    with (
        live_server(scripted_services(engine, prompts), Settings()) as server,
        httpx.Client(transport=httpx.HTTPTransport(retries=10)) as patient,
    ):
        patient.get(f"{server.url}/health")  # it listens a little after it has begun
        code = serve(
            [
                *("--url", f"{server.url}/v1", "--model", "scripted", "--users", "3", "--turns", "2"),
                *("--system", "20", "--user", "4", "--out", "6"),
            ]
        )

    out = capsys.readouterr().out
    assert code == 0, out
    assert "36 answered of 36 asked for" in out
    assert "6 answered of 6 sent" in out
    num_prompt_tokens = sum(len(prompt) for prompt in engine.prompts)
    assert f"{42 / num_prompt_tokens:.1%}  of {num_prompt_tokens:,} prompt tokens" in out


def addresses(**servers: StubServer) -> list[str]:
    return [part for name, stub in servers.items() for part in ("--server", f"{name}={stub.url}@{name}")]


SMALL = ["--users", "2", "--turns", "1", "--system", "5", "--user", "3", "--out", "4"]


def test_servers_get_the_same_bytes_in_a_round_and_others_in_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, figures = tmp_path / "a.svg", tmp_path / "a.json"
    with stub_server(say) as a, stub_server(say) as b:
        code = compare(
            [*addresses(a=a, b=b), *SMALL, "--rounds", "2", "--json", str(figures), "--plot", str(plot)]
        )

    def rounds(stub: StubServer) -> list[list[str]]:
        texts = [str(asked.body["messages"]) for asked in stub.asked]
        return [sorted(texts[:2]), sorted(texts[2:])]

    out, err = capsys.readouterr()
    assert code == 0
    assert rounds(a) == rounds(b)
    assert not set(rounds(a)[0]) & set(rounds(a)[1])
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "round 1, a",
        "round 1, b",
        "round 2, a",
        "round 2, b",
    ]
    assert "output tokens/s" in out
    assert "  over a" in out
    told = json.loads(figures.read_text())
    assert [(each["round"], each["server"], each["tokens"]) for each in told] == [
        (1, "a", 8),
        (1, "b", 8),
        (2, "a", 8),
        (2, "b", 8),
    ]
    assert plot.read_text().count(">First token, first turn<") == 1


def test_a_round_is_what_serve_asks_with_its_seed() -> None:
    with stub_server(say) as a, stub_server(say) as b:
        compare([*addresses(a=a), *SMALL, "--rounds", "1", "--seed", "x"])
        serve(["--url", b.url, "--model", "a", *SMALL, "--seed", "x1"])

    assert sorted(asked.raw for asked in a.asked) == sorted(asked.raw for asked in b.asked)


def test_a_failure_of_one_server_is_told_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(lambda asked: plain("500 No", b"broken")) as a, stub_server(say) as b:
        code = compare([*addresses(a=a, b=b), *SMALL, "--rounds", "2"])

    out = capsys.readouterr().out
    assert code == 1
    assert len(b.asked) == 4
    assert out.count("HTTP 500: broken") == 2
    assert "round 2, a: failed" in out
    assert "round 2, b: failed" not in out


def test_rounds_that_were_whole_are_told_when_a_later_one_cannot_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(asked: Asked) -> list[bytes]:  # each round has a warm-up and two requests
        return plain("500 No", b"broken") if asked.number == 3 else say(asked)

    with stub_server(script) as a, stub_server(say) as b:
        code = compare([*addresses(b=b, a=a), *SMALL, "--rounds", "3", "--warmup", "1"])

    out, err = capsys.readouterr()
    assert code == 1
    assert "1 of 3 rounds" in out
    assert "output tokens/s" in out
    assert err.splitlines()[-1] == "compare: warming up: HTTP 500: broken"


def test_a_server_that_cannot_start_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    start = f"a={sys.executable} -c 'print(\"no model\")'"

    assert compare(["--server", "a=http://127.0.0.1:1/v1@m", "--start", start, *SMALL]) == 1
    assert "code 0:\nno model" in capsys.readouterr().err


def test_compare_refuses_flags_that_name_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare([*SMALL])

    assert "name at least one" in capsys.readouterr().err


def test_compare_says_what_a_server_is_named_by(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare(["--server", "foo", *SMALL])

    assert "--server: foo is not NAME=VALUE" in capsys.readouterr().err
