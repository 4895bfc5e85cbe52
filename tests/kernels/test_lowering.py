"""Pieces of code for vectors, by every way that some processor takes."""

from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.lowering import LANES

WITH_PERMUTES = {"avx512bw": True, "avx512vbmi": True}
HAS_PERMUTES = all(lowering.FEATURES.get(name, False) for name in WITH_PERMUTES)


def split(numbers: "np.ndarray[Any, np.dtype[np.int32]]") -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The high and low bytes of twice LANES numbers, by code that is compiled now."""

    @intrinsic  # type: ignore[untyped-decorator] # numba has no types
    def store_split(typing: Any, numbers: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vectors = []
            for place in (0, LANES):
                index = ir.Constant(ir.IntType(64), place)
                address = lowering.address(context, builder, arguments[0], numbers, index)
                vectors.append(builder.load(builder.bitcast(address, lowering.INTS.as_pointer()), align=4))
            for place, part in enumerate(lowering.split_words(builder, *vectors)):
                index = ir.Constant(ir.IntType(64), place * 2 * LANES)
                target = lowering.address(context, builder, arguments[1], out, index)
                builder.store(part, builder.bitcast(target, part.type.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(numbers, out), codegen

    @numba.njit  # type: ignore[untyped-decorator] # numba has no types
    def run(numbers: Any, out: Any) -> None:
        store_split(numbers, out)

    out = np.zeros(4 * LANES, np.uint8)
    run(numbers, out)
    return out


@pytest.mark.parametrize(
    "features",
    [
        pytest.param(
            WITH_PERMUTES,
            marks=pytest.mark.skipif(not HAS_PERMUTES, reason="this processor has no such instructions"),
        ),
        {},
    ],
)
def test_words_are_split_in_their_order(monkeypatch: pytest.MonkeyPatch, features: dict[str, bool]) -> None:
    monkeypatch.setattr(lowering, "FEATURES", features)
    numbers = np.array([0, 1, 255, 256, 65000, 65535, *range(700, 726)], np.int32)

    found = split(numbers)

    np.testing.assert_array_equal(found[: 2 * LANES], numbers >> 8)
    np.testing.assert_array_equal(found[2 * LANES :], numbers & 255)
