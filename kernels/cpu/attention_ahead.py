"""What a worker's next piece of attention will read, asked for while it computes this one.

Keys and values come from memory more slowly than they are multiplied, and a processor by itself sees too late
where the next ones lie. So the lines of the next piece are asked for a few at a time, in the order of memory,
between the products of this one. They wait in the core's second cache, which has room for two pieces.

Owns that list and its order. `ahead` is a worker's row of AHEAD_SIZE int64: the fields below, then the
addresses of stretches that are `LINES_EACH` lines long.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu import lowering
from kernels.cpu.leaf import leaf
from kernels.cpu.vectors import LANES
from kernels.partitions import PARTITION_TOKENS

__all__ = ["AHEAD_SIZE", "ask", "forget", "heads_together", "look_ahead"]

ADDRESS, NUM_LEFT, LINES_A_CALL, LINES_EACH, NEXT, END, STRETCHES = range(7)
AHEAD_SIZE = STRETCHES + 2 * PARTITION_TOKENS // LANES
LINE_BYTES = 64
PIECE_BYTES = 1 << 18  # at most, of keys and values together: two pieces fit where 512 KiB do

BYTE_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def _prefetch(typing, address):
    """Ask for the line of an address, which need not exist, as far as the second cache."""

    def codegen(context, builder, signature, arguments):
        hints = [ir.Constant(lowering.INT32, hint) for hint in (0, 2, 1)]  # to read, not nearest, data
        place = builder.inttoptr(arguments[0], BYTE_POINTER)
        lowering.call(builder, "llvm.prefetch.p0", [place, *hints], ir.VoidType())
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@leaf
def heads_together(keys):
    """How many key heads make one piece: they lie side by side in a block."""
    _, num_kv_heads, head_dim, _ = keys.shape
    head_bytes = 2 * PARTITION_TOKENS * head_dim * keys.itemsize
    together = num_kv_heads
    while together > 1 and (num_kv_heads % together or together * head_bytes > PIECE_BYTES):
        together -= 1
    return together


@leaf
def forget(ahead):
    """Nothing comes next."""
    ahead[NUM_LEFT] = ahead[NEXT] = ahead[END] = 0


@leaf
def look_ahead(task, head, num_heads, keys, values, block_tables, num_calls, ahead):
    """The keys and values of a task's heads come next, and `ask` will be called so many times before."""
    _, num_kv_heads, head_dim, block_size = keys.shape
    size = head_dim * block_size * keys.itemsize
    first = task.segment * PARTITION_TOKENS // block_size
    num_blocks = -(-task.num_seen // block_size)
    for index in range(num_blocks):
        block = int(block_tables[task.sequence, first + index])
        place = (block * num_kv_heads + head) * size
        ahead[STRETCHES + index] = keys.ctypes.data + place
        ahead[STRETCHES + num_blocks + index] = values.ctypes.data + place
    # Every call stays within one stretch.
    calls_each = max(1, num_calls // (2 * num_blocks))
    ahead[LINES_EACH] = num_heads * size // LINE_BYTES
    ahead[LINES_A_CALL] = -(-ahead[LINES_EACH] // calls_each)
    ahead[ADDRESS], ahead[NUM_LEFT] = ahead[STRETCHES], ahead[LINES_EACH]
    ahead[NEXT], ahead[END] = 1, 2 * num_blocks


@leaf
def ask(ahead):
    """Ask for the next few lines, until there are none."""
    num_left, address = ahead[NUM_LEFT], ahead[ADDRESS]
    if num_left == 0:
        return
    count = min(num_left, ahead[LINES_A_CALL])
    for line in range(count):
        _prefetch(address + line * LINE_BYTES)
    ahead[NUM_LEFT], ahead[ADDRESS] = num_left - count, address + count * LINE_BYTES
    if num_left == count and ahead[NEXT] < ahead[END]:
        ahead[ADDRESS], ahead[NUM_LEFT] = ahead[STRETCHES + ahead[NEXT]], ahead[LINES_EACH]
        ahead[NEXT] += 1
