"""The reference implementation of every operation."""

from kernels import Kernels
from kernels.adjust_logits import adjust_logits_reference
from kernels.copy_blocks import copy_blocks_reference
from kernels.grouped import any_linear_reference
from kernels.move_blocks import gather_blocks_reference, scatter_blocks_reference
from kernels.operations import SamplingOperations
from kernels.paged_attention import paged_attention_reference
from kernels.rms_norm import add_rms_norm_reference, rms_norm_reference
from kernels.rope_store_kv import rope_store_kv_reference
from kernels.sample import sample_reference
from kernels.sampling_cut import MAX_VOCAB
from kernels.silu_and_mul import silu_and_mul_reference
from kernels.stack import ComposedStack

__all__ = ["build"]


def build() -> Kernels:
    """Nothing is compiled, and nothing is set."""
    return Kernels(
        linear=any_linear_reference,
        rms_norm=rms_norm_reference,
        add_rms_norm=add_rms_norm_reference,
        rope_store_kv=rope_store_kv_reference,
        paged_attention=paged_attention_reference,
        silu_and_mul=silu_and_mul_reference,
        copy_blocks=copy_blocks_reference,
        gather_blocks=gather_blocks_reference,
        scatter_blocks=scatter_blocks_reference,
        make_stack=ComposedStack,
        sampling=SamplingOperations(adjust_logits_reference, sample_reference, MAX_VOCAB),
    )
