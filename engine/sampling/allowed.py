"""Tokens that rows of logits may draw, where an answer must follow a grammar."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from engine.sequence import Sequence
from engine.transfer import send

__all__ = ["Allowed", "forbid_others"]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A bit for each token of some rows; and why sequences cannot go on whose grammar cannot be followed."""

    rows: list[int]
    bits: npt.NDArray[np.int32]  # [num_rows, vocab / 32 or more], the lowest bit first
    failures: dict[Sequence, str] = field(default_factory=dict)


def forbid_others(logits: torch.Tensor, allowed: Allowed) -> None:
    """Make what is not allowed impossible, in place. logits: [num_rows, vocab] float32. Nothing waits for a
    device.
    """
    rows, bits = send([np.array(allowed.rows, np.int64), allowed.bits], logits.device)
    lanes = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = ((bits[:, :, None] >> lanes) & 1).view(len(bits), -1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~is_allowed, -torch.inf)
