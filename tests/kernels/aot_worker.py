"""Compiles Triton kernels for chips that are not here, one request a line; the process behind `aot.Compiler`.

A process of its own, since the interpreter, where it is chosen, takes the compiler's place.
"""

import json
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MATRIX = r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_mfma_\w+)"
WIDE_LOADS = (
    r"\b(?:ld\.global[\w.:]*\.v4\.b32|ld\.global[\w.:]*\.v2\.b64|cp\.async\.c[ag]\.shared\.global[^;]*, 0x10"
    r"|(?:global|buffer)_load_(?:dwordx4|lds_dwordx4))"
)


def compile_one(request: dict[str, Any]) -> dict[str, int]:
    """What a kernel takes of a chip; see `aot.Resources`."""
    module, name = request["kernel"].split(":")
    kernel, constants = getattr(import_module(module), name), request["constants"]
    types = {each: "constexpr" if each in constants else request["types"][each] for each in kernel.arg_names}
    aligned = [
        place
        for place, each in enumerate(kernel.arg_names)
        if types[each].startswith("*") or each in request["multiples_of_16"]
    ]
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs=constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
    )
    options = {"num_warps": request["num_warps"], "num_stages": request["num_stages"]}
    done = triton.compile(source, target=GPUTarget(*request["target"]), options=options)
    text = done.asm["amdgcn"] if "amdgcn" in done.asm else done.asm["ptx"]
    registers, spilled = _amd_usage(text) if "amdgcn" in done.asm else _nvidia_usage(done.asm["cubin"])
    return {
        "registers": registers,
        "spilled": spilled,
        "shared_bytes": done.metadata.shared,
        "matrix_instructions": len(re.findall(MATRIX, text)),
        "wide_loads": len(re.findall(WIDE_LOADS, text)),
    }


def _amd_usage(text: str) -> tuple[int, int]:
    found = {
        each: int(re.findall(rf"\.{each}:\s*(\d+)", text)[0]) for each in ("vgpr_count", "vgpr_spill_count")
    }
    return found["vgpr_count"], found["vgpr_spill_count"]


def _nvidia_usage(machine_code: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            answer = compile_one(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever the compiler says is the answer
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        else:
            print(json.dumps(answer), flush=True)
