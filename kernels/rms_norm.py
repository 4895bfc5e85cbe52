"""Root-mean-square normalization, alone and after adding to the residual stream.

out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension

The residual stream is float32 whatever the weights are, so that what the layers add is rounded only once.
"""

import torch
import triton
import triton.language as tl

__all__ = [
    "MAX_SIZE",
    "add_rms_norm",
    "add_rms_norm_reference",
    "num_warps_of",
    "rms_norm",
    "rms_norm_reference",
]

MAX_SIZE = 16384  # of rows that one program holds in its registers; wider ones are read twice
TILE = 4096  # of a wider row at a time


def rms_norm(
    x: torch.Tensor,  # [..., size], float32 or as weight
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [..., size], as weight
    """One program a row."""
    assert x.is_contiguous(), "rows lie one after the other"
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    size = len(weight)
    kernel = _rms_norm_kernel if size <= MAX_SIZE else _wide_rms_norm_kernel
    SIZE = triton.next_power_of_2(size) if size <= MAX_SIZE else TILE
    kernel[(x.numel() // size,)](x, weight, out, eps, size, SIZE=SIZE, num_warps=num_warps_of(SIZE))
    return out


def add_rms_norm(
    x: torch.Tensor,  # [num_tokens, size], as weight
    residual: torch.Tensor,  # [num_tokens, size] float32
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [num_tokens, size], as weight
    """One program a row. Adds x to the residual in place."""
    assert x.is_contiguous(), "rows lie one after the other"
    assert residual.is_contiguous(), "rows lie one after the other"
    out = torch.empty_like(x)
    size = len(weight)
    kernel = _add_rms_norm_kernel if size <= MAX_SIZE else _wide_add_rms_norm_kernel
    SIZE = triton.next_power_of_2(size) if size <= MAX_SIZE else TILE
    kernel[(len(x),)](x, residual, weight, out, eps, size, SIZE=SIZE, num_warps=num_warps_of(SIZE))
    return out


def num_warps_of(size: int) -> int:
    """Of a program that holds a row of so many numbers: 16 a thread, where warps have 32 threads."""
    return min(16, max(1, size // 512))


@triton.jit
def _scaled(row, weight_ptr, dims, inside, scale):
    weight = tl.load(weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    return row * scale * weight


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, size, SIZE: tl.constexpr):  # SIZE: a power of two
    start = tl.program_id(0).to(tl.int64) * size
    dims = tl.arange(0, SIZE)
    inside = dims < size
    row = tl.load(x_ptr + start + dims, mask=inside, other=0.0).to(tl.float32)  # [SIZE]
    normed = _scaled(row, weight_ptr, dims, inside, tl.rsqrt(tl.sum(row * row) / size + eps))
    tl.store(out_ptr + start + dims, normed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, out_ptr, eps, size, SIZE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * size
    dims = tl.arange(0, SIZE)
    inside = dims < size
    row = tl.load(residual_ptr + start + dims, mask=inside, other=0.0)  # [SIZE]
    row += tl.load(x_ptr + start + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + start + dims, row, mask=inside)
    normed = _scaled(row, weight_ptr, dims, inside, tl.rsqrt(tl.sum(row * row) / size + eps))
    tl.store(out_ptr + start + dims, normed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _wide_rms_norm_kernel(x_ptr, weight_ptr, out_ptr, eps, size, SIZE: tl.constexpr):  # SIZE: of a tile
    x_ptr += tl.program_id(0).to(tl.int64) * size
    out_ptr += tl.program_id(0).to(tl.int64) * size
    squares = tl.zeros((SIZE,), tl.float32)
    for start in range(0, size, SIZE):
        dims = start + tl.arange(0, SIZE)
        row = tl.load(x_ptr + dims, mask=dims < size, other=0.0).to(tl.float32)  # [SIZE]
        squares += row * row
    scale = tl.rsqrt(tl.sum(squares) / size + eps)
    for start in range(0, size, SIZE):
        dims = start + tl.arange(0, SIZE)
        row = tl.load(x_ptr + dims, mask=dims < size, other=0.0).to(tl.float32)  # [SIZE]
        normed = _scaled(row, weight_ptr, dims, dims < size, scale)
        tl.store(out_ptr + dims, normed.to(out_ptr.dtype.element_ty), mask=dims < size)


@triton.jit
def _wide_add_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, out_ptr, eps, size, SIZE: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * size
    residual_ptr += tl.program_id(0).to(tl.int64) * size
    out_ptr += tl.program_id(0).to(tl.int64) * size
    squares = tl.zeros((SIZE,), tl.float32)
    for start in range(0, size, SIZE):
        dims = start + tl.arange(0, SIZE)
        row = tl.load(residual_ptr + dims, mask=dims < size, other=0.0)  # [SIZE]
        row += tl.load(x_ptr + dims, mask=dims < size, other=0.0).to(tl.float32)
        tl.store(residual_ptr + dims, row, mask=dims < size)
        squares += row * row
    scale = tl.rsqrt(tl.sum(squares) / size + eps)
    tl.debug_barrier()  # what one thread has stored another may read
    for start in range(0, size, SIZE):
        dims = start + tl.arange(0, SIZE)
        row = tl.load(residual_ptr + dims, mask=dims < size, other=0.0)  # [SIZE]
        normed = _scaled(row, weight_ptr, dims, dims < size, scale)
        tl.store(out_ptr + dims, normed.to(out_ptr.dtype.element_ty), mask=dims < size)


def rms_norm_reference(
    x: torch.Tensor,  # [..., size], float32 or as weight
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [..., size], as weight
    """The formula in plain torch."""
    x = x.float()
    scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight.float()).to(weight.dtype)


def add_rms_norm_reference(
    x: torch.Tensor,  # [num_tokens, size], as weight
    residual: torch.Tensor,  # [num_tokens, size] float32
    weight: torch.Tensor,  # [size]
    eps: float,
) -> torch.Tensor:  # [num_tokens, size], as weight
    """Adds x to the residual in place, and returns the sum normalized."""
    residual += x.float()
    return rms_norm_reference(residual, weight, eps)
