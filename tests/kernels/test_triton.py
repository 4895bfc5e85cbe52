"""The Triton kernels without a GPU: in Triton's interpreter, and compiled for one."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
NUM_CHECKS = 4  # two in two precisions
MAX_SHARED_BYTES = 64 * 1024  # three programs of this size fit a multiprocessor of an H100


def test_the_triton_kernels_agree_with_their_references() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted"],
        cwd=REPOSITORY,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == NUM_CHECKS


def test_the_attention_kernels_compile_for_an_h100_and_fit_its_registers() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == 4
    assert all(int(num_bytes) <= MAX_SHARED_BYTES for _, _, num_bytes, _ in found)
    assert [stack for _, dtype, _, stack in found if dtype == "bf16"] == ["0", "0"]
