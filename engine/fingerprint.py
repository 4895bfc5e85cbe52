"""What a block's bytes depend on beside its tokens, in sixteen bytes.

Keys and values mean something only to the model that wrote them. The fingerprint covers every byte of every
weight, the model's figures, the kind of matrix products, and the form in which blocks lie; where it differs,
stored blocks are another's.
"""

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from engine.models.config import ModelConfig
from kernels.grouped import GroupedMatrix

__all__ = ["FINGERPRINT_BYTES", "fingerprint"]

FINGERPRINT_BYTES = 16

_WORDS = 1 << 15  # of a chunk, 8 bytes each: two chunks and two rows of factors stay in a core's cache


def fingerprint(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor | GroupedMatrix],
    *,
    products: str,
    block_size: int,
    kv_dtype: torch.dtype,
    layout_version: int,
) -> bytes:
    """The same in every process and on every machine of one byte order. Reads the weights once, at about the
    speed of memory, on the calling thread.

    It tells models apart; it is no defence against weights that were made to collide.
    """
    state = blake2b(digest_size=FINGERPRINT_BYTES, person=b"model")
    figures = (sorted(asdict(config).items()), block_size, str(kv_dtype), layout_version, products)
    state.update(repr(figures).encode())
    factors = _factors()
    for name in sorted(weights):
        for tensor in _parts(weights[name]):
            state.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
            state.update(_sums(tensor, factors).tobytes())
    return state.digest()


def _parts(weight: torch.Tensor | GroupedMatrix) -> list[torch.Tensor]:
    if isinstance(weight, torch.Tensor):
        return [weight]
    parts = (weight.codes, weight.scales, weight.minima)
    return [part for part in parts if part is not None]


def _factors() -> npt.NDArray[np.uint64]:
    """[2, _WORDS] odd numbers that look random: splitmix64 of their index."""
    state = np.arange(1, 2 * _WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) | np.uint64(1)).reshape(2, _WORDS)


def _sums(tensor: torch.Tensor, factors: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Two weighted sums of each chunk's words, modulo 2^64: [num_chunks, 2]."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    whole = len(data) // 8 * 8
    words = data[:whole].view(np.uint64)
    tail = np.frombuffer(data[whole:].tobytes().ljust(8, b"\0"), np.uint64)
    starts = range(0, len(words), _WORDS)
    sums = np.empty((len(starts) + 1, 2), np.uint64)
    for row, start in zip(sums, starts, strict=False):
        chunk = words[start : start + _WORDS]
        # Odd factors lose no changed bit, but two changed top bits cancel: the second sum sees those lower.
        row[0] = np.dot(chunk, factors[0, : len(chunk)])
        row[1] = np.dot(chunk >> np.uint64(32), factors[1, : len(chunk)])
    sums[-1] = tail
    return sums
