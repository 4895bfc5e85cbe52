"""Arrays by their addresses.

A compiled function pays for every array that it is handed on, in time to compile above all. A program of many
parts hands on one record of addresses instead, and each part takes what it needs. Whoever fills the record
keeps the arrays alive, and answers for types and sizes: nothing checks them.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

__all__ = ["as_bytes", "as_codes", "as_floats", "as_integers", "as_longs"]


def _pointer_to(element: Any) -> Any:
    """Compile turning an address, an int64, into a pointer to such elements."""
    kind = types.CPointer(element)

    def declare(typing, address):
        def codegen(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), codegen

    return intrinsic(declare)


as_floats = _pointer_to(types.float32)
as_bytes = _pointer_to(types.int8)
as_codes = _pointer_to(types.uint8)
as_integers = _pointer_to(types.int32)
as_longs = _pointer_to(types.int64)
