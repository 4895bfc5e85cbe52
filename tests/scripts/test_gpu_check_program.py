"""The program on a machine without a GPU, and on one with little installed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[2]
PROGRAM = REPOSITORY / "scripts" / "gpu_check"
MAY_IMPORT = {"torch", "triton", "numpy", "tqdm", "kernels", "engine", "prefix_cache", "scripts"}
BLOCKED = ["msgspec", "zmq", "pydantic", "starlette", "uvicorn", "sqlalchemy", "httpx", "gateway"]
WITH_LITTLE_INSTALLED = f"""
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
sys.argv[1:] = ["--small", *sys.argv[1:]]
runpy.run_module("scripts.gpu_check", run_name="__main__")
"""


def run(*command: str, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("flags", [[], ["--small"]])
def test_without_a_gpu_it_says_so_in_one_line(flags: list[str]) -> None:
    done = run("-m", "scripts.gpu_check", *flags, interpreted=False)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no GPU" in done.stderr


def test_the_interpreters_times_are_not_asked_for() -> None:
    done = run("-m", "scripts.gpu_check", interpreted=True)

    assert done.returncode == 2
    assert "TRITON_INTERPRET" in done.stderr


def test_a_name_that_nothing_has_is_answered_with_those_that_there_are() -> None:
    done = run("-m", "scripts.gpu_check", "--small", "--only", "nothing", interpreted=True)

    assert done.returncode == 2
    assert "add_rms_norm; " in done.stderr


def test_it_runs_where_little_is_installed(tmp_path: Path) -> None:
    target = tmp_path / "found.json"

    done = run("-c", WITH_LITTLE_INSTALLED, "--only", "copy", "--json", str(target), interpreted=True)

    assert done.returncode == 0, done.stderr
    document = json.loads(target.read_text())
    assert [row["name"] for row in document["rows"]] == ["copy_blocks", "copy on write"]
    assert all(row["microseconds"] is None for row in document["rows"])
    assert document["yardsticks"] is None
    assert document["is_small"]
    assert "copy on write" in done.stdout


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    flags = ["--small", "--only", "silu", "--seconds", "0", "--json", str(target)]

    done = run("-m", "scripts.gpu_check", *flags, interpreted=True)

    assert done.returncode == 0, done.stderr
    assert "no time is left for kernels" in done.stdout
    assert json.loads(target.read_text())["rows"][0]["status"] == "skipped"


def test_it_imports_what_a_bare_gpu_machine_has() -> None:
    roots = {
        name.split(".")[0]
        for path in PROGRAM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _names(node)
    }

    assert roots - set(sys.stdlib_module_names) <= MAY_IMPORT


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
