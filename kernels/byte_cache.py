"""Keys and values of 8 bits: each token's, of each head, have one step.

    number ~= step * code,  step = max |number| / 127

When they meet the codes, a query is rounded as a key is, and a weight to 16 bits, so that all products are
sums of integers, which are exact in any order.

Such a pool's tensors are int8, and a head has STEP_BYTES more of a token than dimensions: keys are
[num_blocks, num_kv_heads, head_dim + STEP_BYTES, block_size] and values [..., block_size, head_dim +
STEP_BYTES]. In either a block's bytes of one head are its codes, then its tokens' steps, float32.

Owns that form, and how numbers become it.
"""

import torch

from kernels.byte_linear import TINY, TOP

__all__ = ["HEAD_MULTIPLE", "STEP_BYTES", "read_heads", "round_heads", "takes_bytes", "write_heads"]

STEP_BYTES = 4
HEAD_MULTIPLE = 32


def takes_bytes(head_dim: int) -> bool:
    """Whether heads of so many dimensions can be kept in 8 bits."""
    return head_dim % HEAD_MULTIPLE == 0


def round_heads(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, int8 as `numbers`, whose last dimension is the head's, and steps, float32 without it.

    A head that holds a number that is not finite has a step of NaN, and one that is all but zero, of zero.
    """
    numbers = numbers.float()
    peaks = numbers.abs().amax(-1)
    is_tiny = peaks < TINY
    inverses = torch.where(is_tiny, 0.0, torch.full_like(peaks, TOP) / peaks)
    codes = (numbers * inverses[..., None]).round().nan_to_num(0.0).clamp(-TOP, TOP)
    return codes.to(torch.int8), torch.where(is_tiny, 0.0, peaks * (1 / TOP) + (peaks - peaks))


def read_heads(pool: torch.Tensor, head_dim: int, *, is_transposed: bool) -> torch.Tensor:
    """The numbers of a pool's blocks, float32 [num_blocks, num_kv_heads, block_size, head_dim].

    Keys are transposed: their dimensions come before their tokens.
    """
    codes, steps = _parts(pool, head_dim)
    shape = (head_dim, -1) if is_transposed else (-1, head_dim)
    numbers = codes.view(*codes.shape[:2], *shape).float()
    return (numbers.mT if is_transposed else numbers) * steps[..., None]


def write_heads(
    numbers: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    pool: torch.Tensor,
    blocks: torch.Tensor,  # [num_tokens]
    places: torch.Tensor,  # [num_tokens], within the blocks
    *,
    is_transposed: bool,
) -> None:
    """Round tokens' keys or values into their slots."""
    head_dim = numbers.shape[2]
    all_codes, all_steps = _parts(pool, head_dim)
    codes, steps = round_heads(numbers)
    if is_transposed:
        all_codes.view(*all_codes.shape[:2], head_dim, -1)[blocks, :, :, places] = codes
    else:
        all_codes.view(*all_codes.shape[:2], -1, head_dim)[blocks, :, places] = codes
    all_steps[blocks, :, places] = steps


def _parts(pool: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a pool: codes [num_blocks, num_kv_heads, those of a block] and steps [..., block_size]."""
    heads = pool.flatten(2)
    num_codes = heads.shape[2] // (head_dim + STEP_BYTES) * head_dim
    return heads[..., :num_codes], heads[..., num_codes:].view(torch.float32)
