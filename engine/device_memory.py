"""How much of a GPU's memory is left for keys and values, by what the largest step was seen to take."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["MemoryUse", "bytes_left", "measure_use"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of one GPU, in bytes."""

    total: int
    by_others: int  # other processes, and what the driver keeps of this one
    at_peak: int  # weights, and all that the largest step takes beside them


def bytes_left(use: MemoryUse, utilization: float) -> int:
    """What keys and values may have if the engine takes a share of the GPU. Raises ValueError for nothing."""
    share = int(use.total * utilization)
    left = share - use.by_others - use.at_peak
    if left <= 0:
        raise ValueError(
            f"memory_utilization is {utilization}, that is {_gib(share)} of the GPU's {_gib(use.total)}. "
            f"Weights and the largest step take {_gib(use.at_peak)} of it, others {_gib(use.by_others)}, so "
            "nothing is left for keys and values: raise it, lower max_batch_tokens, or end what else is there"
        )
    return left


def measure_use(device: torch.device, run_largest_step: Callable[[], None]) -> MemoryUse:
    """Carry a step out and see what it takes."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step()
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return MemoryUse(
        total=total,
        by_others=total - free - torch.cuda.memory_reserved(device),
        at_peak=torch.cuda.max_memory_reserved(device),
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
