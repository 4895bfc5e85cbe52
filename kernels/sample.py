"""Draw a token for each row of logits, on the device: nothing is sorted, and nobody waits.

    weight = exp((logit - greatest logit) / temperature)
    kept   = what `kernels.sampling_cut` says of top-k, top-p and min-p
    token  = the first, by id, at which the sum of kept masses exceeds number * their whole sum

A row with a temperature below GREEDY_BELOW takes the first of its greatest logits. Tokens are walked by id,
not by rank: the distribution is that of `engine.sampling`, but a filtered row may draw another token for the
same number. An unfiltered one draws the same, unless the number is so near to the border of two tokens that
the rounding of floating sums decides. Sums are of integers here, so a row's token does not depend on tiles,
threads or who shares the step.

Logits may be infinite: the greatest weigh 1. One that is no number weighs nothing, and a row without any
number draws token 0.
"""

import torch
import triton
import triton.language as tl

from kernels.sampling_cut import find_cuts, is_kept, keep_reference, mass_of, masses_reference

__all__ = ["draw", "draw_reference", "sample", "sample_reference", "weigh", "weigh_reference"]

GREEDY_BELOW = tl.constexpr(1e-5)  # temperatures too small to divide by are greedy
TILE = 8192  # tokens at a time


def sample(
    logits: torch.Tensor,  # [num_rows, vocab] float32; overwritten with weights
    temperatures: torch.Tensor,  # [num_rows] float32
    top_k: torch.Tensor,  # [num_rows] int32, 1 or more; vocab or more for all
    top_p: torch.Tensor,  # [num_rows] float64; 1 or more for all
    min_p: torch.Tensor,  # [num_rows] float64, from 0 to 1
    numbers: torch.Tensor,  # [num_rows] float64, in [0, 1)
) -> torch.Tensor:  # [num_rows] int64
    """Three launches of one program a row."""
    weigh(logits, temperatures)
    cuts = find_cuts(logits, top_k, top_p, min_p)
    return draw(logits, *cuts, _first_of_greedy(numbers, temperatures))


def _first_of_greedy(numbers: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """In greedy rows the greatest logits alone weigh, and 0 draws the first of them; it is always kept."""
    return numbers.masked_fill(temperatures < GREEDY_BELOW.value, 0.0)


def weigh(logits: torch.Tensor, temperatures: torch.Tensor) -> None:
    """Overwrite logits with weights from 0 to 1. Those of greedy rows are 0, and 1 at the greatest logits."""
    assert logits.is_contiguous(), "rows lie one after the other"
    _weigh_kernel[(len(logits),)](logits, temperatures, logits.shape[1], TILE=TILE, num_warps=16)


def draw(
    weights: torch.Tensor,  # [num_rows, vocab] float32
    cut: torch.Tensor,  # [num_rows] int32, as `find_cuts` gives it
    end: torch.Tensor,  # [num_rows] int32, as `find_cuts` gives it
    numbers: torch.Tensor,  # [num_rows] float64, in [0, 1)
) -> torch.Tensor:  # [num_rows] int64
    """The inverse of the cumulative distribution at each number; at 0 the first kept token that weighs."""
    assert weights.is_contiguous(), "rows lie one after the other"
    tokens = torch.empty(len(weights), dtype=torch.int64, device=weights.device)
    _draw_kernel[(len(weights),)](
        weights, cut, end, numbers, tokens, weights.shape[1], TILE=TILE, num_warps=16
    )
    return tokens


@triton.jit
def _weigh_kernel(logits_ptr, temperatures_ptr, vocab, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    greatest = tl.full((TILE,), float("-inf"), tl.float32)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        logit = tl.load(row_ptr + ids, mask=ids < vocab, other=float("-inf"))  # [TILE]
        greatest = tl.maximum(greatest, tl.where(logit == logit, logit, float("-inf")))
    best = tl.max(greatest)
    temperature = tl.load(temperatures_ptr + row)
    is_greedy = temperature < GREEDY_BELOW
    divisor = tl.where(is_greedy, 1.0, temperature)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        logit = tl.load(row_ptr + ids, mask=ids < vocab, other=float("-inf"))  # [TILE]
        weight = tl.where(is_greedy, 0.0, tl.exp((logit - best) / divisor))
        weight = tl.where(weight > 0, weight, 0.0)  # no number is not greater either
        tl.store(row_ptr + ids, tl.where(logit == best, 1.0, weight), mask=ids < vocab)


@triton.jit
def _draw_kernel(weights_ptr, cut_ptr, end_ptr, numbers_ptr, tokens_ptr, vocab, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = weights_ptr + row * vocab
    cut, end = tl.load(cut_ptr + row), tl.load(end_ptr + row)
    masses = tl.zeros((TILE,), tl.int64)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        weight = tl.load(row_ptr + ids, mask=ids < vocab, other=0.0)  # [TILE]
        masses += tl.where(is_kept(weight, ids, cut, end), mass_of(weight), 0)
    whole = tl.sum(masses)
    target = (tl.load(numbers_ptr + row) * whole.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, whole - 1)  # a product with a number near 1 may round to the whole
    before = tl.zeros((), tl.int64)
    token = tl.zeros((), tl.int64)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        weight = tl.load(row_ptr + ids, mask=ids < vocab, other=0.0)  # [TILE]
        mass = tl.where(is_kept(weight, ids, cut, end), mass_of(weight), 0)
        after = before + tl.sum(mass)
        if (before <= target) & (target < after):  # it lies in this tile
            token = start + tl.sum((before + tl.cumsum(mass, axis=0) <= target).to(tl.int64))
        before = after
    tl.store(tokens_ptr + row, token)


def weigh_reference(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """The weights of `weigh`, in a tensor of their own."""
    best = logits.masked_fill(logits.isnan(), -torch.inf).amax(-1, keepdim=True)
    is_greedy = (temperatures < GREEDY_BELOW.value)[:, None]
    weights = torch.where(is_greedy, 0.0, ((logits - best) / temperatures[:, None]).exp())
    return torch.where(logits == best, 1.0, weights.nan_to_num(0.0))


def draw_reference(weights: torch.Tensor, kept: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """kept: [num_rows, vocab] bool."""
    sums = (masses_reference(weights) * kept).cumsum(-1)
    whole = sums[:, -1:]
    targets = torch.minimum((numbers[:, None] * whole.double()).long(), whole - 1)
    return torch.searchsorted(sums, targets, right=True)[:, 0]


def sample_reference(
    logits: torch.Tensor,  # [num_rows, vocab] float32
    temperatures: torch.Tensor,  # [num_rows] float32
    top_k: torch.Tensor,  # [num_rows] int32
    top_p: torch.Tensor,  # [num_rows] float64
    min_p: torch.Tensor,  # [num_rows] float64
    numbers: torch.Tensor,  # [num_rows] float64
) -> torch.Tensor:  # [num_rows] int64
    """The same in plain torch, by sorting."""
    weights = weigh_reference(logits, temperatures)
    kept = keep_reference(weights, top_k, top_p, min_p)
    return draw_reference(weights, kept, _first_of_greedy(numbers, temperatures))
