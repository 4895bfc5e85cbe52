"""The attention of the layers' program, as tasks, each called as `kernels.cpu.layer_records` says."""

from kernels.cpu.attention import attend, join
from kernels.cpu.attention_plan import TASKS_PER_WORKER
from kernels.cpu.byte_rows import split_row
from kernels.cpu.layer_records import OUTPUT, inputs
from kernels.cpu.leaf import leaf

__all__ = ["attend_task", "heads_of_item", "join_task"]


@leaf
def heads_of_item(tasks, program, num_kv_heads):
    """Key heads lie side by side in a block, so one worker reads all of them, if there are tasks enough."""
    return num_kv_heads if len(tasks) >= TASKS_PER_WORKER * program.num_workers else 1


@leaf
def attend_task(item, state):
    worker, layer, program, _, (keys, values, query, _, _, _), plans = state
    tasks, members, block_tables, workspace, partials = plans[2:]
    num_heads = heads_of_item(tasks, program, keys.shape[2])
    index, first = item * num_heads // keys.shape[2], item * num_heads % keys.shape[2]
    for head in range(first, first + num_heads):
        attend(
            tasks[index],
            head,
            members,
            query,
            keys[layer],
            values[layer],
            block_tables,
            program.scale,
            program.way,
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
    size, num_inputs = program.num_heads * keys.shape[3], matrices[layer, OUTPUT].num_inputs
    for row in range(tile.first_token, tile.first_token + tile.num_tokens):
        split_row(attended, row * size, size, row, num_inputs, inputs(program))
