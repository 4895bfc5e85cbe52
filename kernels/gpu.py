"""The GPU's implementation of every operation: Triton where a kernel pays, torch where it is as good."""

from functools import partial

from kernels import Kernels
from kernels.adjust_logits import adjust_logits
from kernels.copy_blocks import copy_blocks
from kernels.grouped import any_linear_reference
from kernels.move_blocks import gather_blocks, scatter_blocks
from kernels.operations import SamplingOperations
from kernels.paged_attention import paged_attention
from kernels.planned_attention import begin_planned
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_store_kv import rope_store_kv
from kernels.sample import sample
from kernels.sampling_cut import MAX_VOCAB
from kernels.silu_and_mul import silu_and_mul
from kernels.stack import ComposedStack

__all__ = ["build"]


def build() -> Kernels:
    """Nothing is compiled before it first runs."""
    return Kernels(
        linear=any_linear_reference,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_store_kv=rope_store_kv,
        paged_attention=paged_attention,
        silu_and_mul=silu_and_mul,
        copy_blocks=copy_blocks,
        gather_blocks=gather_blocks,
        scatter_blocks=scatter_blocks,
        make_stack=partial(ComposedStack, begin_attention=begin_planned),
        sampling=SamplingOperations(adjust_logits, sample, MAX_VOCAB),
    )
