"""What the attention kernels take of chips that are not here: registers, shared memory, wide loads."""

import pytest

from kernels.attention_tiles import HeadShape
from tests.kernels.aot import TARGETS, Compiler, DoesNotCompile, Resources
from tests.kernels.compiled_attention import MERGE, PARTITIONS, TILED, compile_attention, launch_of

SHAPE = HeadShape(group=4, head_dim=128, block_size=16)
MAX_SHARED_BYTES = {"sm_80": 100 << 10, "sm_90": 100 << 10, "sm_100": 100 << 10, "gfx942": 64 << 10}
MAX_REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 256}


def _wide_loads_of_queries(kernel: str, target: str) -> int:
    """As many as a program's rows take: what is above them reads keys and values."""
    launch, lanes = launch_of(kernel, target, SHAPE), TARGETS[target][2]
    return launch.rows * SHAPE.dims * 2 // (16 * lanes * launch.num_warps)


def _assert_fits(found: Resources, target: str) -> None:
    assert found.spilled == 0
    assert found.registers <= MAX_REGISTERS[target]
    assert found.shared_bytes <= MAX_SHARED_BYTES[target]
    assert found.wide_loads > 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", TILED)
def test_attention_fits_every_chip_and_multiplies_by_matrix_instructions(
    compiler: Compiler, kernel: str, target: str
) -> None:
    found = compile_attention(compiler, kernel, target, SHAPE)

    _assert_fits(found, target)
    assert found.matrix_instructions > 0
    assert found.wide_loads > _wide_loads_of_queries(kernel, target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", TILED)
def test_pools_of_8_bits_fit_every_chip_that_has_them(compiler: Compiler, kernel: str, target: str) -> None:
    found = compile_attention(compiler, kernel, target, SHAPE, "fp8e4b8" if target == "gfx942" else "fp8e4nv")

    _assert_fits(found, target)
    assert found.matrix_instructions > 0
    # Triton 3.7 copies what single warps multiply on NVIDIA's chips by 8 bytes, whatever the layout allows.
    is_narrow = kernel == PARTITIONS and target != "gfx942"
    assert (found.wide_loads > _wide_loads_of_queries(kernel, target)) != is_narrow


@pytest.mark.parametrize("target", TARGETS)
def test_the_joining_of_partitions_fits_every_chip(compiler: Compiler, target: str) -> None:
    _assert_fits(compile_attention(compiler, MERGE, target, SHAPE), target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_three_programs_of_partitions_fit_a_multiprocessor(compiler: Compiler, target: str) -> None:
    found = compile_attention(compiler, PARTITIONS, target, SHAPE)

    assert 3 * found.shared_bytes <= 227 << 10
    assert 3 * found.registers * 32 * launch_of(PARTITIONS, target, SHAPE).num_warps <= 1 << 16


def test_what_is_refused_by_name_on_an_older_chip_would_not_compile(compiler: Compiler) -> None:
    with pytest.raises(DoesNotCompile, match="fp8e4nv not supported"):
        compile_attention(compiler, PARTITIONS, "sm_80", SHAPE, "fp8e4nv")
