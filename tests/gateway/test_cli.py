"""The command: a user's mistake is one line and exit code 1, never a traceback."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gateway.benches import BENCHES, module_of
from gateway.cli import main
from gateway.serving import bind


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """`serve` sets the log up for the whole process, on a stream that ends with the test."""
    yield
    structlog.reset_defaults()


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a failing command says."""
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("stemma: ")
    return lines[0]


def test_a_misspelt_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "a.toml"
    config.write_text("[server]\nprot = 1\n")

    assert "server.prot" in complaint(capsys, "serve", "--config", str(config))


def test_an_open_address_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert "API keys" in complaint(capsys, "serve", "--host", "0.0.0.0")


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "serve", "--data", str(tmp_path), "--model", str(tmp_path / "none.gguf"))

    assert "none.gguf" in said


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"not a model")

    said = complaint(capsys, "serve", "--data", str(tmp_path / "d"), "--model", str(model), "--port", "0")

    assert "a.gguf" in said


def test_a_port_in_use_costs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "a.gguf"
    model.write_bytes(b"never read")
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])

        said = complaint(capsys, "serve", "--data", str(tmp_path), "--model", str(model), "--port", port)

    assert f"port {port}" in said


def test_a_data_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    assert "data" in complaint(capsys, "migrate", "--data", str(tmp_path / "file" / "data"))


def test_a_database_that_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEMMA_DATABASE__URL", f"sqlite+aiosqlite:///{tmp_path}/no/such/folder/a.sqlite3")

    assert "no/such/folder/a.sqlite3" in complaint(capsys, "migrate", "--data", str(tmp_path))


def test_migrate_makes_a_database_in_the_data_folder(tmp_path: Path) -> None:
    assert main(["migrate", "--data", str(tmp_path / "data")]) == 0
    assert main(["migrate", "--data", str(tmp_path / "data")]) == 0

    assert (tmp_path / "data" / "stemma.sqlite3").is_file()


def test_without_a_command_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])

    assert "serve" in capsys.readouterr().err


def test_the_gateways_process_never_loads_torch() -> None:
    program = (
        "import sys, gateway.cli; print([name for name in sys.modules if name in ('torch', 'transformers')])"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"


WRITES_ITS_NUMBER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"


def stemma(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: a program takes that process's place."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_simulate_passes_its_arguments_and_its_exit_code_through(tmp_path: Path) -> None:
    trace = tmp_path / "a.jsonl"
    trace.write_text('{"timestamp": 0, "hash_ids": [1, 2]}\n' * 3)

    told = stemma("simulate", "--trace", str(trace), "--blocks", "4", "--limit", "2")
    missing = stemma("simulate", "--trace", str(tmp_path / "none.jsonl"), "--blocks", "4")
    unknown = stemma("simulate", "--no-such-flag")

    assert [told.returncode, missing.returncode, unknown.returncode] == [0, 1, 2]
    assert told.stdout.startswith("2 requests, 4 blocks, 2 different ones")
    assert "none.jsonl" in missing.stderr


def test_bench_passes_its_arguments_and_its_exit_code_through() -> None:
    unknown, told = stemma("bench", "serve", "--no-such-flag"), stemma("bench", "serve", "-h")

    assert [unknown.returncode, told.returncode] == [2, 0]
    assert unknown.stderr.startswith("usage: stemma bench serve")
    assert told.stdout.startswith("usage: stemma bench serve")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stemma_ends_its_bench_and_what_that_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    started = tmp_path / "started"
    server = shlex.join([sys.executable, "-c", WRITES_ITS_NUMBER, str(started)])
    arguments = ["--server", "a=http://127.0.0.1:9/v1@x", "--start", f"a={server}"]
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "bench", "compare", *arguments], stderr=subprocess.PIPE, text=True
    ) as bench:
        while not started.exists() or not started.read_text():
            assert bench.poll() is None
            time.sleep(0.05)
        bench.send_signal(number)
        _, told = bench.communicate(timeout=60)

    assert bench.returncode == 128 + number
    assert "Traceback" not in told
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_an_unknown_bench_is_answered_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "trees"]) == 1

    err = capsys.readouterr().err
    assert err.startswith("stemma: there is no bench 'trees'")
    assert all(f"  {name} " in err for name in BENCHES)


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_without_a_name_the_benches_are_listed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["bench", *arguments]) == code

    out = capsys.readouterr().out
    assert all(f"{name} " in out and line in out for name, line in BENCHES.items())


def test_every_program_among_the_benches_has_its_line_and_no_other() -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    programs = {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}

    assert {module_of(name) for name in BENCHES} == programs - {"simulate"}


def test_no_bench_is_imported_by_who_runs_it() -> None:
    program = (
        "import sys, gateway.cli; print([name for name in sys.modules if name.startswith('benchmarks')])"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"


def test_flags_that_a_command_does_not_know_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["migrate", "--no-such-flag"])

    assert "--no-such-flag" in capsys.readouterr().err
