"""Exponentials of vectors: how exact they are, and their edges."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest

from kernels.cpu.exponentials import EXP2_FLOOR, EXP_FLOOR, exp, exp2, exp2_rough
from kernels.cpu.vectors import LANES, load, store


def _compile(function: Any) -> Any:
    @numba.njit
    def apply(x, out):  # type: ignore[no-untyped-def] # numba has no types
        for place in range(0, len(x), LANES):
            store(out, place, function(load(x, place)))

    return apply


FUNCTIONS = {"exp": _compile(exp), "exp2": _compile(exp2), "exp2_rough": _compile(exp2_rough)}


def _apply(name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out = np.empty_like(x)
    FUNCTIONS[name](x, out)
    return out


# The errors of the polynomials and of a few roundings in float32.
@pytest.mark.parametrize(
    ("name", "low", "high", "error"),
    [
        ("exp", EXP_FLOOR, 88.0, 2e-7),
        ("exp2", EXP2_FLOOR, 127.0, 2e-7),
        ("exp2_rough", EXP2_FLOOR, 127.0, 8e-5),
    ],
)
def test_results_are_as_exact_as_promised(name: str, low: float, high: float, error: float) -> None:
    x = np.linspace(low, high, 1 << 16, dtype=np.float32)

    found = _apply(name, x)

    exact = np.exp(x.astype(np.float64)) if name == "exp" else np.exp2(x.astype(np.float64))
    assert np.abs(found / exact - 1).max() < error


@pytest.mark.parametrize("name", FUNCTIONS)
def test_minus_infinity_gives_zero_and_not_a_number_stays(name: str) -> None:
    x = np.array([-np.inf, np.nan] * (LANES // 2), np.float32)

    found = _apply(name, x)

    assert (found[0::2] == 0).all()
    assert np.isnan(found[1::2]).all()


def test_below_its_floor_exp_is_exactly_zero() -> None:
    x = np.linspace(-1000.0, np.nextafter(np.float32(EXP_FLOOR), np.float32(-np.inf)), 256, dtype=np.float32)

    assert (_apply("exp", x) == 0).all()
