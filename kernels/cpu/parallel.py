"""How threads of a compiled loop share work whose pieces differ in size.

Owns counters that threads count up together, one a cache line: what is taken, what is done. Whoever is free
takes the next piece, and nobody goes on before all pieces are done. A thread that comes late, or never, only
finds less to do: the others do its share, so nothing waits for a thread that is not running.
"""

import os
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.leaf import leaf

__all__ = ["COUNTERS_OF_PHASE", "cycles", "shared", "shared_in_pairs", "take_turn"]

IS_X86 = platform.machine() in ("x86_64", "AMD64")
IS_POSIX = os.name == "posix"
LINE = 8  # int64 of a cache line
TURNS_BEFORE_YIELD = 1000  # some ten microseconds
COUNTERS_OF_PHASE = 2 * LINE  # what is taken, and what is done
INDEX = ir.IntType(64)


@intrinsic
def take_turn(typing, counter):
    """The int64 at the array's start, which becomes one more: no two threads get the same number."""
    if counter.dtype != types.int64:
        return None

    def codegen(context, builder, signature, arguments):
        place = lowering.address(context, builder, arguments[0], counter, ir.Constant(INDEX, 0))
        return builder.atomic_rmw("add", place, ir.Constant(INDEX, 1), "monotonic")

    return types.int64(counter), codegen


@intrinsic
def _count(typing, counters, place, number):
    """What stood at a place before `number` was added to it. What was written before is seen by whoever sees
    the sum.
    """

    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], counters, arguments[1])
        return builder.atomic_rmw("add", address, arguments[2], "acq_rel")

    return types.int64(counters, types.intp, types.int64), codegen


@intrinsic
def _read(typing, counters, place):
    """What stands at a place, and with it all that was written before it was put there."""

    def codegen(context, builder, signature, arguments):
        address = lowering.address(context, builder, arguments[0], counters, arguments[1])
        return builder.load_atomic(address, "acquire", 8)

    return types.int64(counters, types.intp), codegen


@intrinsic
def _pause(typing):
    """Tell the processor that this is a loop that waits."""

    def codegen(context, builder, signature, arguments):
        if IS_X86:
            lowering.call(builder, "llvm.x86.sse2.pause", [], ir.VoidType())
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def _yield(typing):
    """Let another process have this core, if one wants it."""

    def codegen(context, builder, signature, arguments):
        if IS_POSIX:
            lowering.call(builder, "sched_yield", [], lowering.INT32)
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def cycles(typing):
    """The processor's clock: int64, in units of its own."""

    def codegen(context, builder, signature, arguments):
        return lowering.call(builder, "llvm.readcyclecounter", [], INDEX)

    return types.int64(), codegen


def shared(work: Any) -> Any:
    """Compile taking part in a phase whose pieces of work are `work(task, state)`."""

    @leaf
    def take_part(counters, phase, num_tasks, state):
        """Do what no other thread took, and return when all of it is done.

        Each phase has COUNTERS_OF_PHASE zeros of `counters` to itself. Returns the cycles that this thread
        waited for others.
        """
        taken = phase * COUNTERS_OF_PHASE
        num_done = 0
        task = _count(counters, taken, 1)
        while task < num_tasks:
            work(task, state)
            num_done += 1
            task = _count(counters, taken, 1)
        return _wait(counters, taken + LINE, num_done, num_tasks)

    return take_part


def shared_in_pairs(work: Any) -> Any:
    """As `shared`, where a thread knows its next piece while it does one: `work(task, following, state)`.

    What follows may lie past the last piece.
    """

    @leaf
    def take_part(counters, phase, num_tasks, state):
        taken = phase * COUNTERS_OF_PHASE
        num_done = 0
        task = _count(counters, taken, 1)
        while task < num_tasks:
            following = _count(counters, taken, 1)
            work(task, following, state)
            num_done += 1
            task = following
        return _wait(counters, taken + LINE, num_done, num_tasks)

    return take_part


@leaf
def _wait(counters, done, num_done, num_tasks):
    """Count what this thread has done, and return when all is: with the cycles until then."""
    if _count(counters, done, num_done) + num_done >= num_tasks:
        return 0
    started, num_turns = cycles(), 0
    while _read(counters, done) < num_tasks:
        _pause()
        num_turns += 1
        # Whoever has the last piece may have lost its core to another process: this one may help.
        if num_turns % TURNS_BEFORE_YIELD == 0:
            _yield()
    return cycles() - started
