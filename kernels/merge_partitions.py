"""Join the sums over partitions of a context into the attention over all of it.

out[t, h] = sum over p of 2^(m[p] - m) * outs[p] / sum over p of 2^(m[p] - m) * sums[p]

with m the largest of the maxima m[p] (Milakov and Gimelshein, 2018), over the partitions that the token sees.
They are joined in order, so a token's result depends on itself alone. A token that sees nothing gets zeros.
"""

import torch
import triton
import triton.language as tl

from kernels.attention_work import ShortSpans
from kernels.partition_attention import PartitionSums
from kernels.partitions import PARTITION_TOKENS

__all__ = ["merge_partitions", "merge_partitions_reference"]


def merge_partitions(
    parts: PartitionSums,
    short: ShortSpans,
    out: torch.Tensor,  # [num_tokens, num_heads, head_dim], written for the tokens of short spans
) -> None:
    """One program a token and query head."""
    assert out.is_contiguous(), "programs count elements from the first"
    _, num_heads, head_dim = out.shape
    num_slots = len(short.tokens)
    _merge_partitions_kernel[(num_slots, num_heads)](
        *parts,
        short.tokens,
        short.visible,
        out,
        num_slots,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        PARTITION=PARTITION_TOKENS,
        PARTS=16,
    )


@triton.jit(do_not_specialize=["num_slots"])
def _merge_partitions_kernel(
    maxima_ptr,
    sums_ptr,
    outs_ptr,
    tokens_ptr,
    visible_ptr,
    out_ptr,
    num_slots,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,  # a power of two, at least HEAD_DIM
    PARTITION: tl.constexpr,
    PARTS: tl.constexpr,  # partitions at a time; a power of two
):
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = tl.load(tokens_ptr + slot).to(tl.int64)
    if token < 0:
        return
    dims = tl.arange(0, DIMS)
    has_dim = dims < HEAD_DIM
    num_parts = tl.cdiv(tl.load(visible_ptr + slot), PARTITION)
    running_max, running_sum = float("-inf"), 0.0
    acc = tl.zeros((DIMS,), tl.float32)
    for start in range(0, num_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        exists = part < num_parts  # the sums of others hold anything
        places = (part.to(tl.int64) * num_slots + slot) * NUM_HEADS + head
        maxima = tl.load(maxima_ptr + places, mask=exists, other=float("-inf"))  # [PARTS]
        sums = tl.load(sums_ptr + places, mask=exists, other=0.0)
        outs = tl.load(  # [PARTS, DIMS]
            outs_ptr + places[:, None] * HEAD_DIM + dims[None, :],
            mask=exists[:, None] & has_dim[None, :],
            other=0.0,
        )
        new_max = tl.maximum(running_max, tl.max(maxima, axis=0))
        shrink, weights = tl.exp2(running_max - new_max), tl.exp2(maxima - new_max)
        running_sum = running_sum * shrink + tl.sum(weights * sums, axis=0)
        acc = acc * shrink + tl.sum(weights[:, None] * outs, axis=0)
        running_max = new_max
    out = acc / tl.where(num_parts > 0, running_sum, 1.0)
    target = out_ptr + (token * NUM_HEADS + head) * HEAD_DIM + dims
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=has_dim)


def merge_partitions_reference(
    parts: PartitionSums,
    short: ShortSpans,
    out: torch.Tensor,  # [num_tokens, num_heads, head_dim], written for the tokens of short spans
) -> None:
    """The formula in plain torch."""
    for slot, (token, num_visible) in enumerate(
        zip(short.tokens.tolist(), short.visible.tolist(), strict=True)
    ):
        if token < 0:
            continue
        maxima, sums, outs = (each[: -(-num_visible // PARTITION_TOKENS), slot] for each in parts)
        if not len(maxima):
            out[token] = 0
            continue
        weights = (maxima - maxima.amax(dim=0)).exp2()  # [num_partitions, num_heads]
        joined = (weights[..., None] * outs).sum(dim=0) / (weights * sums).sum(dim=0)[:, None]
        out[token] = joined.to(out.dtype)
