"""The attention of the layers' program, as tasks, each called as `kernels.cpu.layer_records` says."""

from kernels.cpu.attention import join
from kernels.cpu.attention_pieces import attend_piece, count_pieces
from kernels.cpu.byte_rows import split_row
from kernels.cpu.layer_records import OUTPUT, inputs
from kernels.cpu.leaf import leaf

__all__ = ["attend_task", "join_task", "num_pieces"]


@leaf
def num_pieces(program, pools, plans):
    """How many pieces of work `attend_task` is called with."""
    return count_pieces(plans[2], pools[0][0], program.num_workers)


@leaf
def attend_task(piece, following, state):
    """One piece of work, by a worker that takes `following` next."""
    worker, layer, program, _, (keys, values, query, _, _, _), plans, way = state
    tasks, members, block_tables, workspace, partials = plans[2:]
    attend_piece(
        piece,
        following,
        tasks,
        members,
        query,
        keys[layer],
        values[layer],
        block_tables,
        program.scale,
        way,
        worker,
        workspace,
        partials,
    )


@leaf
def join_task(index, state):
    """A tile's heads, joined and made the next product's input."""
    _, layer, program, matrices, (keys, _, _, _, _, attended), plans = state
    tile, parts, partials, num_kv_heads = plans[0][index], plans[1], plans[6], keys.shape[2]
    for head in range(num_kv_heads):
        join(tile, head, parts, partials, program.num_heads // num_kv_heads, attended)
    size, num_inputs = program.num_heads * attended.shape[2], matrices[layer, OUTPUT].num_inputs
    for row in range(tile.first_token, tile.first_token + tile.num_tokens):
        split_row(attended, row * size, size, row, num_inputs, inputs(program))
