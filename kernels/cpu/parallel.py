"""How threads of a compiled loop share work whose pieces differ in size.

Owns the one operation that they need: everything else that they write is their own.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering

__all__ = ["take_turn"]


@intrinsic
def take_turn(typing, counter):
    """The int64 at the array's start, which becomes one more: no two threads get the same number."""
    if counter.dtype != types.int64:
        return None

    def codegen(context, builder, signature, arguments):
        first = ir.Constant(ir.IntType(64), 0)
        place = lowering.address(context, builder, arguments[0], counter, first)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen
