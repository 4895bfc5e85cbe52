"""A choice among functions is made when a program is compiled, and the others are not compiled."""

import numba
import pytest
from numba.core.errors import TypingError

from kernels.cpu.leaf import leaf
from kernels.cpu.one_of import one_of


@leaf
def double(x):  # type: ignore[no-untyped-def] # numba infers types
    return 2 * x


@leaf
def negate(x):  # type: ignore[no-untyped-def] # numba infers types
    return -x


@leaf
def through_calls_and_tuples(x, state):  # type: ignore[no-untyped-def] # numba infers types
    _, which = state
    return chosen(which, x)


chosen = one_of(double, negate)


def test_only_the_function_that_is_taken_is_compiled() -> None:
    which = 1
    program = numba.njit(lambda x: through_calls_and_tuples(x, (0.5, which)))

    assert program(3.0) == -3.0
    assert len(negate.signatures) == 1
    assert double.signatures == []


def test_a_choice_that_is_no_constant_is_refused() -> None:
    program = numba.njit(lambda which, x: chosen(which, x))

    with pytest.raises(TypingError):
        program(1, 3.0)
