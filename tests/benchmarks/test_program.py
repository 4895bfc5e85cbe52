"""How benches end: every way out in a process of its own."""

import signal
import subprocess
import sys

import pytest

BEGIN = "import os, signal, sys, time\nfrom benchmarks.program import run\ndef main():\n"


def ended(body: str) -> subprocess.CompletedProcess[str]:
    program = f"{BEGIN}    {body}\nrun(main)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("print('figures')", 0, ""),
        ("return 3", 3, ""),
        ("open('/nowhere/at/all')", 1, "No such file or directory: '/nowhere/at/all'\n"),
        ("raise ValueError('the model has no layers')", 1, "the model has no layers\n"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", 128 + signal.SIGINT, "interrupted\n"),
    ],
)
def test_the_code_and_the_one_line(body: str, code: int, told: str) -> None:
    done = ended(body)

    assert done.returncode == code
    assert done.stderr.endswith(told)
    assert len(done.stderr.splitlines()) == len(told.splitlines())


def test_a_signal_to_end_unwinds() -> None:
    done = ended("try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)\n    finally: print('cleaned up')")

    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout == "cleaned up\n"


def test_who_reads_may_leave() -> None:
    done = ended("r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('x' * 100_000)")

    assert done.returncode == 1
    assert done.stderr == ""


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    done = ended("return {}['figures']")

    assert done.returncode == 1
    assert "Traceback" in done.stderr
