"""Penalties and bias: change few logits of each row, before anything is drawn.

logit = (logit / penalty if logit > 0 else logit * penalty) - loss + bias     for each token that is named

Named are those that were seen, drawn or biased; a bias of minus infinity forbids a token.
"""

import torch
import triton
import triton.language as tl

__all__ = ["adjust_logits", "adjust_logits_reference"]

EDITS = 256  # of one program


def adjust_logits(
    logits: torch.Tensor,  # [num_rows, vocab] float32, changed in place
    places: torch.Tensor,  # [num_edits, 2] int32: row and token, none twice
    amounts: torch.Tensor,  # [num_edits, 3] float32: penalty (1 for none), loss and bias
) -> None:
    """One program for EDITS edits."""
    for tensor in (logits, places, amounts):
        assert tensor.is_contiguous(), "programs count elements from the first"
    grid = (triton.cdiv(len(places), EDITS),)
    _adjust_logits_kernel[grid](logits, places, amounts, len(places), logits.shape[1], EDITS=EDITS)


@triton.jit(do_not_specialize=["num_edits"])  # or it is compiled again in the middle of serving
def _adjust_logits_kernel(logits_ptr, places_ptr, amounts_ptr, num_edits, vocab, EDITS: tl.constexpr):
    edits = tl.program_id(0).to(tl.int64) * EDITS + tl.arange(0, EDITS)
    inside = edits < num_edits  # the last program may have fewer
    row = tl.load(places_ptr + 2 * edits, mask=inside, other=0).to(tl.int64)  # [EDITS]
    token = tl.load(places_ptr + 2 * edits + 1, mask=inside, other=0)
    penalty = tl.load(amounts_ptr + 3 * edits, mask=inside, other=1.0)
    loss = tl.load(amounts_ptr + 3 * edits + 1, mask=inside, other=0.0)
    bias = tl.load(amounts_ptr + 3 * edits + 2, mask=inside, other=0.0)
    target = logits_ptr + row * vocab + token
    logit = tl.load(target, mask=inside, other=0.0)
    logit = tl.where(logit > 0, tl.div_rn(logit, penalty), logit * penalty)
    tl.store(target, logit - loss + bias, mask=inside)


def adjust_logits_reference(
    logits: torch.Tensor,  # [num_rows, vocab] float32, changed in place
    places: torch.Tensor,  # [num_edits, 2] int32: row and token, none twice
    amounts: torch.Tensor,  # [num_edits, 3] float32: penalty (1 for none), loss and bias
) -> None:
    """The same in plain torch."""
    row, token = places.long().unbind(1)
    penalty, loss, bias = amounts.unbind(1)
    logit = logits[row, token]
    logits[row, token] = torch.where(logit > 0, logit / penalty, logit * penalty) - loss + bias
