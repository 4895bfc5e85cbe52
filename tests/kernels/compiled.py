"""What the attention kernels take of an H100 when compiled for one, which needs no GPU; run by test_triton.

Prints name, type, bytes of shared memory and bytes of stack, which registers are spilled to. In a process of
its own, since the interpreter, where it is chosen, takes the compiler's place.
"""

import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.paged_attention import _paged_attention_kernel
from kernels.shared_attention import _shared_partition_kernel

H100 = GPUTarget("cuda", 90, 32)
CONSTANTS = {"BLOCK_SIZE": 16, "GROUP": 4, "MEMBERS": 8, "DIMS": 128, "PARTITION": 256, "TILE": 32}
POOL = ("query_ptr", "keys_ptr", "values_ptr", "out_ptr")
SUMS = ("maxima_ptr", "sums_ptr", "outs_ptr")


def kind_of(name: str, dtype: str) -> str:
    """Triton's name for the type of an argument."""
    if name in POOL:
        return f"*{dtype}"
    if name in SUMS:
        return "*fp32"
    if name == "is_done_ptr":
        return "*i1"
    if name == "scale":
        return "fp32"
    return "*i32" if name.endswith("_ptr") else "i32"


def stack_bytes(machine_code: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(machine_code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found is not None, usage
    return int(found[1])


def compile_for_h100(kernel: Any, dtype: str) -> None:
    constants = CONSTANTS | {"PRECISION": "tf32" if dtype == "bf16" else "ieee"}
    signature = {
        name: "constexpr" if name in constants else kind_of(name, dtype) for name in kernel.arg_names
    }
    used = {name: value for name, value in constants.items() if name in signature}
    done = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=used), target=H100)
    print(kernel.fn.__name__, dtype, done.metadata.shared, stack_bytes(done.asm["cubin"]))


if __name__ == "__main__":
    for attention in (_paged_attention_kernel, _shared_partition_kernel):
        for precision in ("bf16", "fp32"):
            compile_for_h100(attention, precision)
