"""Attention of all layers of a step on a GPU: planned once; one kernel norms, rotates and stores heads."""

from torch import Tensor

from kernels.attention_tiles import HeadShape, Scales
from kernels.attention_work import plan_attention
from kernels.norm_rope_store_kv import norm_rope_store_kv
from kernels.operations import Operations
from kernels.paged_attention import attend
from kernels.rope_store_kv import rope_store_kv
from kernels.stack import Attend, Norms, StackShape, StepTensors

__all__ = ["begin_planned"]


def begin_planned(
    _: Operations,
    shape: StackShape,
    step: StepTensors,
    angles: tuple[Tensor, Tensor],
    num_tokens: int,
    block_size: int,
) -> Attend:
    """As `kernels.stack.BeginAttention` has it. Nothing waits for the device."""
    heads = HeadShape(shape.num_heads // shape.num_kv_heads, shape.head_dim, block_size)
    work = plan_attention(
        step.block_tables, step.context_lens, step.cu_seqlens_q, step.leaders, num_tokens, heads
    )

    def attend_planned(qkv: Tensor, norms: Norms | None, keys: Tensor, values: Tensor) -> Tensor:
        if norms is None:
            query = rope_store_kv(qkv, *angles, keys, values, step.slot_mapping)
        else:
            query = norm_rope_store_kv(qkv, norms, angles, keys, values, step.slot_mapping)
        return attend(query, keys, values, work, Scales(shape.score_scale)).flatten(1)

    return attend_planned
