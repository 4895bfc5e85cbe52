"""What a Triton kernel takes of a chip that is not here."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["TARGETS", "Compiler", "DoesNotCompile", "Resources"]

# Backend, architecture and threads of a warp: what the worker makes Triton's GPUTarget of.
TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}


class DoesNotCompile(Exception):
    """The compiler's own words."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Read off the machine code and the assembly before it."""

    registers: int  # of a thread
    spilled: int  # bytes of stack a thread on NVIDIA's chips, registers on AMD's
    shared_bytes: int  # of a program
    matrix_instructions: int
    wide_loads: int  # of 16 bytes from global memory


class Compiler:
    """One process that compiles for any target, with Triton's cache between runs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.aot_worker"],
            cwd=Path(__file__).parents[2],
            env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def compile(
        self,
        kernel: str,
        target: str,
        types: Mapping[str, str],
        constants: Mapping[str, int | str | bool],
        *,
        multiples_of_16: tuple[str, ...] = (),
        num_warps: int = 4,
        num_stages: int = 3,
    ) -> Resources:
        """`kernel` is "module:name"; `types` are Triton's, by argument, and may name more arguments than the
        kernel has. Pointers are to multiples of 16 bytes, as torch's are; so are the integers named. Raises
        DoesNotCompile.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "kernel": kernel,
            "target": TARGETS[target],
            "types": dict(types),
            "constants": dict(constants),
            "multiples_of_16": multiples_of_16,
            "num_warps": num_warps,
            "num_stages": num_stages,
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise DoesNotCompile(answer["error"])
        return Resources(**answer)
