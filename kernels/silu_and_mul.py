"""The gated feed-forward's activation.

out = silu(gate) * up, silu(x) = x / (1 + exp(-x))
"""

import torch
import triton
import triton.language as tl

__all__ = ["silu_and_mul", "silu_and_mul_reference"]

DIMS = 2048  # outputs of one program


def silu_and_mul(
    gate_up: torch.Tensor,  # [num_tokens, 2 * size]: gate, then up
) -> torch.Tensor:  # [num_tokens, size]
    """One program a token and DIMS outputs."""
    assert gate_up.is_contiguous(), "rows lie one after the other"
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    _silu_and_mul_kernel[(num_tokens, triton.cdiv(size, DIMS))](gate_up, out, size, DIMS=DIMS)
    return out


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, size, DIMS: tl.constexpr):  # DIMS: a power of two
    token = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    inside = dims < size
    gate_ptr = gate_up_ptr + token * 2 * size
    gate = tl.load(gate_ptr + dims, mask=inside, other=0.0).to(tl.float32)  # [DIMS]
    up = tl.load(gate_ptr + size + dims, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * size + dims, out.to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul_reference(
    gate_up: torch.Tensor,  # [num_tokens, 2 * size]: gate, then up
) -> torch.Tensor:  # [num_tokens, size]
    """The formula in plain torch, rounded once."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
