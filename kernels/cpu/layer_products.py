"""The products of the layers' program, as tasks: one tile of outputs x some rows.

Owns which worker reads which tile, and what becomes of a result. A task is called as `layer_records` says.
"""

from kernels.cpu.byte_linear import CHUNK_ROWS, compile_product, factors, sum_rows
from kernels.cpu.byte_rows import product_vector
from kernels.cpu.byte_tiles import COLUMNS, ROWS, SUMS_SIZE, TILE_OUTPUTS
from kernels.cpu.fused_rows import gated
from kernels.cpu.layer_records import DOWN, GATE, OUTPUT, QKV, UP, inputs
from kernels.cpu.leaf import leaf
from kernels.cpu.pointers import as_codes, as_floats, as_integers
from kernels.cpu.vectors import LANES, add, load, store

__all__ = ["down_task", "gate_up_task", "num_tasks", "output_task", "qkv_task"]


@leaf
def _num_chunks(program):
    return (program.num_rows + CHUNK_ROWS - 1) // CHUNK_ROWS


@leaf
def num_tasks(matrix, program):
    """How many tasks a product with a MATRIX is."""
    return matrix.num_outputs // TILE_OUTPUTS * _num_chunks(program)


@leaf
def _rows_of(task, matrix, program):
    """The tile of a product's task, and its first row and the one after its last.

    Workers that take turns each read one run of memory, so that it comes before it is asked for.
    """
    num_tiles, num_chunks = matrix.num_outputs // TILE_OUTPUTS, _num_chunks(program)
    turn, chunk = task // num_chunks, task % num_chunks
    run, place = turn % program.num_workers, turn // program.num_workers
    tile = run * (num_tiles // program.num_workers) + min(run, num_tiles % program.num_workers) + place
    return tile, chunk * CHUNK_ROWS, min((chunk + 1) * CHUNK_ROWS, program.num_rows)


@leaf
def _sums_of(program, worker, index):
    """Where a worker's sums begin: there is memory for those of two tiles."""
    return as_integers(program.sums + 4 * ROWS * SUMS_SIZE * (2 * worker + index))


@leaf
def _arrays_of(matrix):
    """A matrix as `byte_linear` takes it."""
    scales, bias = as_floats(matrix.scales), as_floats(matrix.bias)
    return as_codes(matrix.codes), scales, bias, matrix.num_inputs, matrix.num_outputs


@leaf
def _add_to(target, place, vector):
    store(target, place, add(load(target, place), vector))


_store_product, _add_product = compile_product(store), compile_product(_add_to)


@leaf
def qkv_task(task, state):
    """Queries, keys and values."""
    worker, layer, program, matrices, pools = state
    matrix = matrices[layer, QKV]
    tile, start, end = _rows_of(task, matrix, program)
    sums, has_registers = _sums_of(program, worker, 0), program.has_registers != 0
    _store_product(_arrays_of(matrix), tile, inputs(program), start, end, has_registers, sums, pools[4])


@leaf
def output_task(task, state):
    """The end of attention, added to the residual stream."""
    worker, layer, program, matrices, _ = state
    _add_to_residual(task, worker, matrices[layer, OUTPUT], program)


@leaf
def down_task(task, state):
    """The end of the feed-forward, added to the residual stream."""
    worker, layer, program, matrices, _ = state
    _add_to_residual(task, worker, matrices[layer, DOWN], program)


@leaf
def _add_to_residual(task, worker, matrix, program):
    """A product whose outputs are as many as a row of the residual stream has numbers."""
    tile, start, end = _rows_of(task, matrix, program)
    sums, has_registers = _sums_of(program, worker, 0), program.has_registers != 0
    residual = as_floats(program.residual)
    _add_product(_arrays_of(matrix), tile, inputs(program), start, end, has_registers, sums, residual)


@leaf
def gate_up_task(task, state):
    """A tile of gates and the tile of what they let through."""
    worker, layer, program, matrices, _ = state
    gate, up = _arrays_of(matrices[layer, GATE]), _arrays_of(matrices[layer, UP])
    width = matrices[layer, UP].num_outputs
    tile, start, end = _rows_of(task, matrices[layer, UP], program)
    gates, ups = _sums_of(program, worker, 0), _sums_of(program, worker, 1)
    expanded, rows_in, has_registers = (
        as_floats(program.expanded),
        inputs(program),
        program.has_registers != 0,
    )
    for row in range(start, end, ROWS):
        num_rows = min(ROWS, end - row)
        sum_rows(gate, tile, rows_in, row, num_rows, has_registers, row == start, gates)
        sum_rows(up, tile, rows_in, row, num_rows, has_registers, row == start, ups)
        for column in range(COLUMNS):
            output = tile * TILE_OUTPUTS + column * LANES
            gate_scales, gate_bias = factors(gate, output)
            up_scales, up_bias = factors(up, output)
            for index in range(num_rows):
                place = index * SUMS_SIZE + column * LANES
                gate_value = product_vector(gates, place, rows_in, row + index, gate_scales, gate_bias)
                up_value = product_vector(ups, place, rows_in, row + index, up_scales, up_bias)
                store(expanded, (row + index) * width + output, gated(gate_value, up_value))
