"""Functions that do the same in several ways, of which a program compiles the one that it takes."""

from typing import Any

from numba import types
from numba.extending import overload

__all__ = ["one_of"]


def one_of(*functions: Any) -> Any:
    """For compiled functions: `chosen(index, *arguments)` calls the function of that index.

    The index is a constant of the program's that is handed down to the call, by itself or in tuples, so that
    the others are never compiled.
    """

    def chosen(index, *arguments):
        return functions[index](*arguments)

    @overload(chosen, prefer_literal=True, jit_options={"_nrt": False, "error_model": "numpy"})
    def declare(index, *arguments):
        if not isinstance(index, types.IntegerLiteral):
            return None
        function = functions[index.literal_value]

        def call(index, *arguments):
            return function(*arguments)

        return call

    return chosen
