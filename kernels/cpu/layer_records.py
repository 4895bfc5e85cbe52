"""What every task of the layers' program is told: two records of numbers and addresses.

Owns the records, and how a task is called. `kernels.cpu.fused_stack` fills them in.
"""

import numpy as np

from kernels.cpu.leaf import leaf
from kernels.cpu.pointers import as_bytes, as_floats, as_integers

__all__ = ["DOWN", "GATE", "MATRIX", "OUTPUT", "PROGRAM", "QKV", "UP", "inputs"]

QKV, OUTPUT, GATE, UP, DOWN = range(5)

MATRIX = np.dtype(
    [
        ("codes", np.int64),  # uint8, packed as `byte_tiles` has it
        ("scales", np.int64),  # float32 [num_outputs]
        ("bias", np.int64),  # float32 [num_outputs]
        ("num_inputs", np.int64),  # padded to whole tiles, as are the outputs
        ("num_outputs", np.int64),
    ]
)

# Numbers, and addresses of arrays. Rows of what is computed in are padded to whole tile registers.
PROGRAM = np.dtype(
    [
        ("num_workers", np.int64),
        ("num_layers", np.int64),
        ("num_heads", np.int64),
        ("hidden_size", np.int64),
        ("eps", np.float32),
        ("scale", np.float32),  # of scores
        ("has_registers", np.int64),
        ("norms", np.int64),  # float32 [2 * num_layers + 1, hidden_size], before each half layer and at last
        ("head_norms", np.int64),  # float32 [num_layers, 2, head_dim], queries' and keys'; 0: there are none
        # The step's.
        ("num_rows", np.int64),
        ("residual", np.int64),  # float32 [num_rows, hidden_size]
        ("cosines", np.int64),  # float32 [num_rows, head_dim / 2]
        ("sines", np.int64),
        ("slot_mapping", np.int64),  # int32 [num_rows]
        # What is computed in.
        ("high", np.int64),  # int8: the inputs of the product that comes next, see `byte_rows`
        ("low", np.int64),
        ("steps", np.int64),  # float32 [num_rows]
        ("excesses", np.int64),  # int32 [num_rows * 2]
        ("expanded", np.int64),  # float32 [num_rows, outputs of UP]
        ("rows", np.int64),  # float32 [num_workers, hidden_size]
        ("sums", np.int64),  # int32 [num_workers, 2, ROWS * SUMS_SIZE]
        ("counters", np.int64),  # int64, of all phases; zeros at the start
        ("cycles", np.int64),  # int64 [len(KINDS_OF_WORK)]: what the first worker's time goes to
    ]
)

# Every piece of work is `work(task, state)`. A state is (worker, layer, program, matrices, pools); for
# attention the plans follow, and where it matters the way of attention, a constant. Matrices are MATRIX
# records [num_layers, 5]; pools are keys and values of all layers, queries [num_rows, num_heads, head_dim],
# the result [num_rows, hidden_size], and in float32 what QKV gives, [num_rows, its outputs], and what
# attention gives, [num_rows, num_heads, head_dim].


@leaf
def inputs(program):
    """The inputs of the product that comes next, as `byte_rows` has them."""
    return (
        as_bytes(program.high),
        as_bytes(program.low),
        as_floats(program.steps),
        as_integers(program.excesses),
    )
