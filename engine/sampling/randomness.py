"""Uniform numbers that depend on a sequence alone: its seed, its choice and its position, whatever runs
beside it.

The generator is a chain of SplitMix64 finalizers (Steele, Lea and Flood, 2014) over the three words.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["uniform"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform(
    seeds: npt.NDArray[np.uint64], choices: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each row; all arrays are [num_rows]."""
    with np.errstate(over="ignore"):
        state = _finalize(seeds + _GAMMA)
        state = _finalize((state ^ choices) + _GAMMA)
        state = _finalize((state ^ positions) + _GAMMA)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalize(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
