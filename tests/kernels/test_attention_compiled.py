"""What the attention kernels take of chips that are not here: registers, shared memory, wide loads."""

import pytest

from kernels.attention_tiles import HeadShape, LaunchShape, launch_of_partitions, launch_of_spans
from kernels.partitions import PARTITION_TOKENS
from kernels.pool_types import Capability
from tests.kernels.aot import TARGETS, Compiler, DoesNotCompile, Resources

SHAPE = HeadShape(group=4, head_dim=128, block_size=16)
CAPABILITIES = {
    "sm_80": Capability(8, 0),
    "sm_90": Capability(9, 0),
    "sm_100": Capability(10, 0),
    "gfx942": Capability(9, 4, is_amd=True),
}
MAX_SHARED_BYTES = {"sm_80": 100 << 10, "sm_90": 100 << 10, "sm_100": 100 << 10, "gfx942": 64 << 10}
MAX_REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 256}
PARTITIONS = "kernels.partition_attention:_partition_attention_kernel"
MERGE = "kernels.merge_partitions:_merge_partitions_kernel"
SPANS = "kernels.span_attention:_span_attention_kernel"
WINDOWED = "kernels.windowed_attention:_windowed_attention_kernel"
CAPPED = "kernels.capped_attention:_capped_attention_kernel"
FLOATS, NUMBERS = ("score_scale", "value_scale", "cap"), ("num_slots", "max_blocks", "window")
SUMS = ("maxima_ptr", "sums_ptr", "outs_ptr")
LISTS = (
    *("tables_ptr", "tokens_ptr", "sequences_ptr", "visible_ptr", "members_ptr", "counts_ptr", "walks_ptr"),
    *("contexts_ptr", "starts_ptr", "first_tokens_ptr"),
)


def _compile(compiler: Compiler, kernel: str, target: str, pool: str = "bf16") -> Resources:
    launch = _launch_of(kernel, target)
    types = (
        dict.fromkeys(LISTS, "*i32")
        | dict.fromkeys(SUMS, "*fp32")
        | dict.fromkeys(FLOATS, "fp32")
        | dict.fromkeys(NUMBERS, "i32")
        | dict.fromkeys(("query_ptr", "out_ptr"), "*bf16")
        | dict.fromkeys(("keys_ptr", "values_ptr"), f"*{pool}")
    )
    constants: dict[str, int | str | bool] = {"HEAD_DIM": SHAPE.head_dim, "DIMS": SHAPE.dims}
    if kernel == MERGE:
        constants |= {"NUM_HEADS": 32, "PARTS": 16}
    else:
        constants |= {"KV_HEADS": 8, "GROUP": SHAPE.group, "ROWS": launch.rows, "TILE": launch.tile}
        constants |= {"BLOCK_SIZE": SHAPE.block_size, "PRECISION": "tf32"}
    if kernel in (MERGE, PARTITIONS):
        constants["PARTITION"] = PARTITION_TOKENS
    return compiler.compile(
        kernel, target, types, constants, num_warps=launch.num_warps, num_stages=launch.num_stages
    )


def _launch_of(kernel: str, target: str) -> LaunchShape:
    launch = launch_of_partitions if kernel in (PARTITIONS, MERGE) else launch_of_spans
    return launch(SHAPE, CAPABILITIES[target])


def _wide_loads_of_queries(kernel: str, target: str) -> int:
    """As many as a program's rows take: what is above them reads keys and values."""
    launch, lanes = _launch_of(kernel, target), TARGETS[target][2]
    return launch.rows * SHAPE.dims * 2 // (16 * lanes * launch.num_warps)


def _assert_fits(found: Resources, target: str) -> None:
    assert found.spilled == 0
    assert found.registers <= MAX_REGISTERS[target]
    assert found.shared_bytes <= MAX_SHARED_BYTES[target]
    assert found.wide_loads > 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [PARTITIONS, SPANS, WINDOWED, CAPPED])
def test_attention_fits_every_chip_and_multiplies_by_matrix_instructions(
    compiler: Compiler, kernel: str, target: str
) -> None:
    found = _compile(compiler, kernel, target)

    _assert_fits(found, target)
    assert found.matrix_instructions > 0
    assert found.wide_loads > _wide_loads_of_queries(kernel, target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", [PARTITIONS, SPANS, WINDOWED, CAPPED])
def test_pools_of_8_bits_fit_every_chip_that_has_them(compiler: Compiler, kernel: str, target: str) -> None:
    found = _compile(compiler, kernel, target, "fp8e4b8" if target == "gfx942" else "fp8e4nv")

    _assert_fits(found, target)
    assert found.matrix_instructions > 0
    # Triton 3.7 copies what single warps multiply on NVIDIA's chips by 8 bytes, whatever the layout allows.
    is_narrow = kernel == PARTITIONS and target != "gfx942"
    assert (found.wide_loads > _wide_loads_of_queries(kernel, target)) != is_narrow


@pytest.mark.parametrize("target", TARGETS)
def test_the_joining_of_partitions_fits_every_chip(compiler: Compiler, target: str) -> None:
    _assert_fits(_compile(compiler, MERGE, target), target)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_three_programs_of_partitions_fit_a_multiprocessor(compiler: Compiler, target: str) -> None:
    found = _compile(compiler, PARTITIONS, target)

    assert 3 * found.shared_bytes <= 227 << 10
    assert 3 * found.registers * 32 * _launch_of(PARTITIONS, target).num_warps <= 1 << 16


def test_what_is_refused_by_name_on_an_older_chip_would_not_compile(compiler: Compiler) -> None:
    with pytest.raises(DoesNotCompile, match="fp8e4nv not supported"):
        _compile(compiler, PARTITIONS, "sm_80", "fp8e4nv")
