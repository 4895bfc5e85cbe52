"""What the GPU's small kernels take of four chips, as they are launched for a model of 8 billion weights."""

import pytest

from tests.kernels.aot import TARGETS, Compiler, DoesNotCompile, Resources

NUMBERS = {"eps": "fp32", "key_scale": "fp32", "value_scale": "fp32"}
TYPES = {
    "x_ptr": "*bf16",
    "weight_ptr": "*bf16",
    "out_ptr": "*bf16",
    "residual_ptr": "*fp32",
    "gate_up_ptr": "*bf16",
    "qkv_ptr": "*bf16",
    "query_ptr": "*bf16",
    "query_norm_ptr": "*bf16",
    "key_norm_ptr": "*bf16",
    "cosines_ptr": "*fp32",
    "sines_ptr": "*fp32",
    "keys_ptr": "*bf16",
    "values_ptr": "*bf16",
    "slots_ptr": "*i32",
    "pool_ptr": "*u8",
    "staging_ptr": "*u8",
    "blocks_ptr": "*i64",
    "sources_ptr": "*i64",
    "targets_ptr": "*i64",
    "logits_ptr": "*fp32",
    "weights_ptr": "*fp32",
    "temperatures_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "top_p_ptr": "*fp64",
    "min_p_ptr": "*fp64",
    "numbers_ptr": "*fp64",
    "cut_ptr": "*i32",
    "end_ptr": "*i32",
    "tokens_ptr": "*i64",
    "places_ptr": "*i32",
    "amounts_ptr": "*fp32",
    **NUMBERS,
    **dict.fromkeys(
        ("size", "num_heads", "num_kv_heads", "half", "block_size", "num_blocks", "row_bytes", "num_layers"),
        "i32",
    ),
    **dict.fromkeys(("kind_stride", "layer_stride", "block_stride", "staged_kind_stride"), "i64"),
    **dict.fromkeys(("staged_layer_stride", "staged_block_stride"), "i64"),
    **dict.fromkeys(("vocab", "num_edits"), "i32"),
}
ALIGNED = tuple(name for name, kind in TYPES.items() if kind in ("i32", "i64") and name != "num_kv_heads")
ROPE = {"HEADS": 8, "PAIRS": 64}
# Kernel, its constants, warps, the registers that it may take of a thread, and whether its loads are wide.
KERNELS = [
    ("rms_norm:_rms_norm_kernel", {"SIZE": 4096}, 8, 64, True),
    ("rms_norm:_add_rms_norm_kernel", {"SIZE": 4096}, 8, 64, True),
    ("rms_norm:_wide_rms_norm_kernel", {"SIZE": 4096}, 8, 80, True),
    ("rms_norm:_wide_add_rms_norm_kernel", {"SIZE": 4096}, 8, 80, True),
    ("silu_and_mul:_silu_and_mul_kernel", {"DIMS": 2048}, 4, 64, True),
    ("rope_store_kv:_rope_store_kv_kernel", ROPE, 1, 128, True),
    ("norm_rope_store_kv:_norm_rope_store_kv_kernel", ROPE, 1, 168, True),
    ("copy_blocks:_copy_blocks_kernel", {"TILE": 8192}, 4, 64, True),
    ("move_blocks:_move_blocks_kernel", {"TILE": 8192, "IS_GATHER": True}, 4, 64, True),
    ("move_blocks:_move_blocks_kernel", {"TILE": 8192, "IS_GATHER": False}, 4, 64, True),
    ("sample:_weigh_kernel", {"TILE": 8192}, 16, 80, True),
    ("sampling_cut:_find_cuts_kernel", {"TILE": 4096}, 16, 128, True),
    ("sample:_draw_kernel", {"TILE": 8192}, 16, 128, True),
    ("adjust_logits:_adjust_logits_kernel", {"EDITS": 256}, 4, 64, False),
]
FP8 = ["_rope_store_fp8_kernel", "_norm_rope_store_fp8_kernel"]


def compile_fp8(compiler: Compiler, name: str, target: str) -> Resources:
    pool, limit = ("*fp8e4b8", 240) if target == "gfx942" else ("*fp8e4nv", 448)
    types = TYPES | {"keys_ptr": pool, "values_ptr": pool}
    return compiler.compile(
        f"kernels.rope_store_fp8:{name}",
        target,
        types,
        ROPE | {"LIMIT": limit},
        multiples_of_16=ALIGNED,
        num_warps=1,
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "constants", "num_warps", "registers", "is_wide"), KERNELS)
def test_a_kernel_spills_nothing_and_loads_16_bytes_at_once(
    kernel: str,
    constants: dict[str, int],
    num_warps: int,
    registers: int,
    is_wide: bool,
    target: str,
    compiler: Compiler,
) -> None:
    found = compiler.compile(
        f"kernels.{kernel}", target, TYPES, constants, multiples_of_16=ALIGNED, num_warps=num_warps
    )

    assert found.spilled == 0
    assert found.registers <= registers
    assert (found.wide_loads > 0) == is_wide


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "sm_80"])
@pytest.mark.parametrize("name", FP8)
def test_storing_eight_bits_spills_nothing(name: str, target: str, compiler: Compiler) -> None:
    found = compile_fp8(compiler, name, target)

    assert found.spilled == 0
    assert found.registers <= 192
    assert found.wide_loads > 0


def test_a_chip_without_eight_bits_cannot_compile_for_them(compiler: Compiler) -> None:
    with pytest.raises(DoesNotCompile, match="fp8e4nv"):
        compile_fp8(compiler, FP8[0], "sm_80")
