"""The CPU's implementation of every operation, and the threads that it runs on."""

from collections.abc import Iterable

import numba
import torch

from kernels import Kernels, Products
from kernels.cpu.fused_stack import FusedStack
from kernels.cpu.move_blocks import copy_blocks, gather_blocks, scatter_blocks
from kernels.cpu.paged_attention import paged_attention
from kernels.cpu.products import choose_linear
from kernels.cpu.rms_norm import add_rms_norm, rms_norm
from kernels.cpu.rope_store_kv import rope_store_kv
from kernels.cpu.silu_and_mul import silu_and_mul
from kernels.operations import Operations
from kernels.stack import ComposedStack, LayerWeights, Stack, StackShape

__all__ = ["build"]


def build(products: Products, *, deterministic: bool) -> Kernels:
    """Sets the number of compiled kernels' threads, for the calling thread, to torch's."""
    # Where there is OpenMP its pool is torch's own, so two pools never spin against each other.
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    return Kernels(
        linear=choose_linear(products, deterministic=deterministic),
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_store_kv=rope_store_kv,
        paged_attention=paged_attention,
        silu_and_mul=silu_and_mul,
        copy_blocks=copy_blocks,
        gather_blocks=gather_blocks,
        scatter_blocks=scatter_blocks,
        make_stack=_fused_if_it_fits if products == "int8" else ComposedStack,
    )


def _fused_if_it_fits(
    operations: Operations, layers: Iterable[LayerWeights], final_norm: torch.Tensor, shape: StackShape
) -> Stack:
    if FusedStack.fits(len(final_norm), shape.head_dim):
        return FusedStack(layers, final_norm, shape)
    return ComposedStack(operations, layers, final_norm, shape)
