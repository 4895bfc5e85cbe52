"""Every shape of heads and blocks that is promised, compiled for every chip: `make test-compile`.

A few shapes spill a few words on some chips; the bound keeps that from growing.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from kernels.attention_tiles import HeadShape
from tests.kernels.aot import TARGETS, Compiler
from tests.kernels.compiled_attention import MERGE, TILED, compile_attention

HEAD_DIMS, BLOCK_SIZES, GROUPS = (64, 80, 96, 128, 256), (16, 32, 64, 128), (1, 4, 7)
MAX_SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
MAX_SPILLED = 32  # bytes of a thread on NVIDIA's chips, registers on AMD's


def shapes() -> Iterator[HeadShape]:
    """All of them."""
    for head_dim, block_size, group in product(HEAD_DIMS, BLOCK_SIZES, GROUPS):
        yield HeadShape(group, head_dim, block_size)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ["bf16", "fp16"])
@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("kernel", [*TILED, MERGE], ids=lambda kernel: kernel.split(":")[1])
def test_a_kernel_compiles_for_a_chip(
    kernel: str, shape: HeadShape, element: str, target: str, compiler: Compiler
) -> None:
    found = compile_attention(compiler, kernel, target, shape, element, element)

    assert found.shared_bytes <= MAX_SHARED_BYTES[target]
    assert found.spilled <= MAX_SPILLED
    assert (found.matrix_instructions > 0) == (kernel != MERGE)
    assert found.wide_loads > 0
