"""The attention kernels, compiled for chips that are not here as they are launched there."""

from kernels.attention_tiles import HeadShape, LaunchShape, launch_of_partitions, launch_of_spans
from kernels.partitions import PARTITION_TOKENS
from kernels.pool_types import Capability
from tests.kernels.aot import Compiler, Resources

__all__ = ["CAPPED", "MERGE", "PARTITIONS", "SPANS", "TILED", "WINDOWED", "compile_attention", "launch_of"]

CAPABILITIES = {
    "sm_80": Capability(8, 0),
    "sm_90": Capability(9, 0),
    "sm_100": Capability(10, 0),
    "gfx942": Capability(9, 4, is_amd=True),
}
PARTITIONS = "kernels.partition_attention:_partition_attention_kernel"
MERGE = "kernels.merge_partitions:_merge_partitions_kernel"
SPANS = "kernels.span_attention:_span_attention_kernel"
WINDOWED = "kernels.windowed_attention:_windowed_attention_kernel"
CAPPED = "kernels.capped_attention:_capped_attention_kernel"
TILED = (PARTITIONS, SPANS, WINDOWED, CAPPED)
KV_HEADS = 8
FLOATS, NUMBERS = ("score_scale", "value_scale", "cap"), ("num_slots", "max_blocks", "window")
SUMS = ("maxima_ptr", "sums_ptr", "outs_ptr")
LISTS = (
    *("tables_ptr", "tokens_ptr", "sequences_ptr", "visible_ptr", "members_ptr", "counts_ptr", "walks_ptr"),
    *("contexts_ptr", "starts_ptr", "first_tokens_ptr"),
)


def compile_attention(
    compiler: Compiler, kernel: str, target: str, shape: HeadShape, pool: str = "bf16", element: str = "bf16"
) -> Resources:
    """`pool` and `element` are Triton's names for the types of keys and values, and of queries."""
    launch = launch_of(kernel, target, shape)
    types = (
        dict.fromkeys(LISTS, "*i32")
        | dict.fromkeys(SUMS, "*fp32")
        | dict.fromkeys(FLOATS, "fp32")
        | dict.fromkeys(NUMBERS, "i32")
        | dict.fromkeys(("query_ptr", "out_ptr"), f"*{element}")
        | dict.fromkeys(("keys_ptr", "values_ptr"), f"*{pool}")
    )
    constants: dict[str, int | str | bool] = {"HEAD_DIM": shape.head_dim, "DIMS": shape.dims}
    if kernel == MERGE:
        constants |= {"NUM_HEADS": KV_HEADS * shape.group, "PARTS": 16}
    else:
        constants |= {"KV_HEADS": KV_HEADS, "GROUP": shape.group, "ROWS": launch.rows, "TILE": launch.tile}
        constants |= {"BLOCK_SIZE": shape.block_size, "PRECISION": "tf32"}
    if kernel in (MERGE, PARTITIONS):
        constants["PARTITION"] = PARTITION_TOKENS
    return compiler.compile(
        kernel, target, types, constants, num_warps=launch.num_warps, num_stages=launch.num_stages
    )


def launch_of(kernel: str, target: str, shape: HeadShape) -> LaunchShape:
    """The sizes with which a chip is given a kernel."""
    launch = launch_of_partitions if kernel in (PARTITIONS, MERGE) else launch_of_spans
    return launch(shape, CAPABILITIES[target])
