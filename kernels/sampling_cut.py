"""Where the kept tokens of a row end, found without sorting: top-k, top-p and min-p together.

Tokens are ordered by weight, greatest first, and equal ones by id, lowest first. Kept is a token

    whose rank < top_k,  mass before it < top_p * mass of the best top_k,  and weight >= min_p

which is always some first part of that order, and the first token always. It is told by two numbers:

    kept = bits(weight) > cut  or  bits(weight) == cut and token_id < end

A weight's bits, as an integer, are ordered as weights are, so the cut is found by bisection. Masses are sums
of integers, floor(weight * 2^44), so they are exact in any order: those of 524,287 tokens fit 64 bits.
"""

import torch
import triton
import triton.language as tl

__all__ = ["MASS_ONE", "MAX_VOCAB", "find_cuts", "is_kept", "keep_reference", "mass_of", "masses_reference"]

MASS_ONE = tl.constexpr(17592186044416.0)  # 2^44, the best token's mass
MAX_VOCAB = (1 << 19) - 1
TILE = 4096  # tokens at a time; with 8192 registers are spilled on an H100
_ONE_BITS = tl.constexpr(0x3F800000)  # of the weight 1


def find_cuts(
    weights: torch.Tensor,  # [num_rows, vocab] float32, from 0 to 1, and 1 at the best
    top_k: torch.Tensor,  # [num_rows] int32, 1 or more; vocab or more for all
    top_p: torch.Tensor,  # [num_rows] float64; 1 or more for all
    min_p: torch.Tensor,  # [num_rows] float64, from 0 to 1
) -> tuple[torch.Tensor, torch.Tensor]:  # cut and end, [num_rows] int32
    """One program a row, which walks it once for each bit that it decides."""
    assert weights.is_contiguous(), "rows lie one after the other"
    assert weights.shape[1] <= MAX_VOCAB, "masses of more do not fit 64 bits"
    cut, end = (torch.empty(len(weights), dtype=torch.int32, device=weights.device) for _ in range(2))
    _find_cuts_kernel[(len(weights),)](
        weights, top_k, top_p, min_p, cut, end, weights.shape[1], TILE=TILE, num_warps=16
    )
    return cut, end


@triton.jit
def mass_of(weight):
    return (weight * MASS_ONE).to(tl.int64)


@triton.jit
def is_kept(weight, ids, cut, end):
    bits = weight.to(tl.int32, bitcast=True)
    return (bits > cut) | ((bits == cut) & (ids < end))


@triton.jit
def _count(row_ptr, bits, vocab, TILE: tl.constexpr):
    """How many tokens have these bits or more."""
    counts = tl.zeros((TILE,), tl.int32)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        weight = tl.load(row_ptr + ids, mask=ids < vocab, other=-1.0)  # [TILE], negative past the row
        counts += (weight.to(tl.int32, bitcast=True) >= bits).to(tl.int32)
    return tl.sum(counts)


@triton.jit
def _mass(row_ptr, bits, vocab, TILE: tl.constexpr):
    """What tokens with these bits or more weigh together."""
    masses = tl.zeros((TILE,), tl.int64)
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        weight = tl.load(row_ptr + ids, mask=ids < vocab, other=-1.0)  # [TILE], negative past the row
        masses += tl.where(weight.to(tl.int32, bitcast=True) >= bits, mass_of(weight), 0)
    return tl.sum(masses)


@triton.jit
def _end_of_ties(row_ptr, cut, num_ties, vocab, TILE: tl.constexpr):
    """The id after the last of the first num_ties tokens whose bits are the cut's."""
    end = 0
    seen = 0
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        weight = tl.load(row_ptr + ids, mask=ids < vocab, other=-1.0)  # [TILE], negative past the row
        ties = (weight.to(tl.int32, bitcast=True) == cut).to(tl.int32)
        among = (ties > 0) & (seen + tl.cumsum(ties, axis=0) <= num_ties)
        end = tl.maximum(end, tl.max(tl.where(among, ids + 1, 0)))
        seen += tl.sum(ties)
    return end


@triton.jit
def _find_cuts_kernel(
    weights_ptr, top_k_ptr, top_p_ptr, min_p_ptr, cut_ptr, end_ptr, vocab, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = weights_ptr + row * vocab
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    low = tl.zeros((), tl.int32)
    num_ties = tl.zeros((), tl.int32) + vocab  # of tokens whose bits are `low`, how many are kept
    if top_k < vocab:
        high = tl.zeros((), tl.int32) + _ONE_BITS + 1
        while high - low > 1:  # the greatest `low` that so many tokens reach
            middle = (low + high) // 2
            count = _count(row_ptr, middle, vocab, TILE)
            low = tl.where(count >= top_k, middle, low)
            high = tl.where(count > top_k, high, tl.where(count == top_k, middle + 1, middle))
        num_ties = tl.minimum(num_ties, top_k - _count(row_ptr, low + 1, vocab, TILE))
    if top_p < 1.0:
        above = _mass(row_ptr, low + 1, vocab, TILE)
        at_low = mass_of(low.to(tl.float32, bitcast=True))
        whole = _mass(row_ptr, low, vocab, TILE)
        whole = tl.where(top_k < vocab, tl.minimum(whole, above + num_ties * at_low), whole)
        limit = tl.maximum(tl.ceil(top_p * whole.to(tl.float64)).to(tl.int64), 1)
        if above >= limit:  # the cut lies higher
            num_ties = tl.zeros((), tl.int32) + vocab
            high = tl.zeros((), tl.int32) + _ONE_BITS
            while high - low > 1:  # the least `high` above which there is less than the limit
                middle = (low + high) // 2
                is_less = _mass(row_ptr, middle + 1, vocab, TILE) < limit
                high = tl.where(is_less, middle, high)
                low = tl.where(is_less, low, middle)
            low = high
            above = _mass(row_ptr, low + 1, vocab, TILE)
        each = tl.maximum(mass_of(low.to(tl.float32, bitcast=True)), 1)
        most = tl.minimum((limit - above + each - 1) // each, vocab).to(tl.int32)
        # Weightless tokens add nothing to the mass before them.
        num_ties = tl.where(
            low.to(tl.float32, bitcast=True) * MASS_ONE < 1.0, num_ties, tl.minimum(num_ties, most)
        )
    min_p = tl.load(min_p_ptr + row)
    least = min_p.to(tl.float32)
    least_bits = least.to(tl.int32, bitcast=True) + (least.to(tl.float64) < min_p).to(tl.int32)
    num_ties = tl.where(least_bits > low, vocab, num_ties)
    low = tl.maximum(low, least_bits)
    tl.store(cut_ptr + row, low)
    end = vocab
    if num_ties < vocab:
        end = _end_of_ties(row_ptr, low, num_ties, vocab, TILE)
    tl.store(end_ptr + row, end)


def masses_reference(weights: torch.Tensor) -> torch.Tensor:
    """floor(weight * 2^44), int64."""
    return (weights * MASS_ONE.value).long()


def keep_reference(
    weights: torch.Tensor,  # [num_rows, vocab] float32, from 0 to 1, and 1 at the best
    top_k: torch.Tensor,  # [num_rows] int32
    top_p: torch.Tensor,  # [num_rows] float64
    min_p: torch.Tensor,  # [num_rows] float64
) -> torch.Tensor:  # [num_rows, vocab] bool: which tokens are kept
    """By sorting, as the definition has it."""
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
    in_top_k = torch.arange(weights.shape[1], device=weights.device) < top_k[:, None]
    masses = masses_reference(ordered) * in_top_k
    before = masses.cumsum(-1) - masses
    limits = (top_p[:, None] * masses.sum(-1, keepdim=True).double()).ceil().clamp(min=1)
    kept = in_top_k & ((before < limits) | (top_p[:, None] >= 1)) & (ordered.double() >= min_p[:, None])
    return torch.zeros_like(kept).scatter(1, ids, kept)
