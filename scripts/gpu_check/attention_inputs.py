"""One step's attention: a pool that is NaN where nothing was written, and what some rows should be."""

from dataclasses import dataclass

import torch

from kernels.attention_tiles import HeadShape, Scales
from kernels.attention_work import AttentionWork, QueryTiles, plan_attention, plan_tiles
from kernels.partitions import find_leaders
from scripts.gpu_check.cases import seeded
from scripts.gpu_check.shapes import Load, Shapes

__all__ = ["Inputs", "attended_rows", "make_inputs", "picked_rows"]

_NUM_PICKED = 96  # rows of a prompt that are held against the reference


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of attention, by `docs/data-layout.md`."""

    load: Load
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: torch.Tensor
    contexts: torch.Tensor
    starts: torch.Tensor
    leaders: torch.Tensor
    scales: Scales

    def plan(self) -> AttentionWork:
        """Short spans by partitions, long ones by tiles."""
        shape = HeadShape.of(self.query, self.keys)
        return plan_attention(self.tables, self.contexts, self.starts, self.leaders, len(self.query), shape)

    def tiles(self) -> QueryTiles:
        """Every span by tiles."""
        shape = HeadShape.of(self.query, self.keys)
        return plan_tiles(self.tables, self.contexts, self.starts, len(self.query), shape)


def make_inputs(
    load: Load, shapes: Shapes, device: torch.device, pool_dtype: torch.dtype = torch.bfloat16
) -> Inputs:
    """Blocks in any order, and one that is nobody's. Pools of 8 bits have scales."""
    model, size = shapes.model, shapes.block_size
    generator = seeded(device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).bfloat16()

    tables, nobody = _block_tables(load, size, generator, device)
    num_blocks = load.num_blocks(size) + 1
    keys = random(num_blocks, model.num_kv_heads, model.head_dim, size)
    values = random(num_blocks, model.num_kv_heads, size, model.head_dim)
    keys[nobody], values[nobody] = torch.nan, torch.nan
    if num_unused := -load.context % size:
        keys[tables[:, -1].long(), :, :, -num_unused:] = torch.nan
        values[tables[:, -1].long(), :, -num_unused:] = torch.nan
    scale, is_narrow = model.head_dim**-0.5, pool_dtype.itemsize == 1
    return Inputs(
        load=load,
        query=random(load.num_sequences * load.num_new, model.num_heads, model.head_dim),
        keys=keys.to(pool_dtype),
        values=values.to(pool_dtype),
        tables=tables,
        contexts=torch.full((load.num_sequences,), load.context, dtype=torch.int32, device=device),
        starts=torch.arange(load.num_sequences + 1, dtype=torch.int32, device=device) * load.num_new,
        leaders=torch.from_numpy(find_leaders(tables.cpu().numpy(), load.context, size)).to(device),
        scales=Scales(scale, 0.5, 2.0) if is_narrow else Scales(scale),
    )


def _block_tables(
    load: Load, block_size: int, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, int]:
    """And a block that is in none."""
    num_common = load.num_shared // block_size
    order = torch.randperm(load.num_blocks(block_size) + 1, generator=generator, device=device).int()
    nobody, common, own = order[0], order[1 : num_common + 1], order[num_common + 1 :]
    own = own.view(load.num_sequences, -1)
    return torch.cat((common.expand(load.num_sequences, -1), own), dim=1).contiguous(), int(nobody)


def picked_rows(load: Load) -> list[int]:
    """The first and the last token of the step, and others between them."""
    num_tokens = load.num_sequences * load.num_new
    places = torch.linspace(0, num_tokens - 1, min(num_tokens, _NUM_PICKED)).round().int()
    return sorted(set(places.tolist()))


def attended_rows(
    inputs: Inputs, rows: list[int], *, window: int | None = None, cap: float | None = None
) -> torch.Tensor:  # [num_rows, num_heads, head_dim] float32
    """In plain torch, in float32 from what the pool holds, sequence by sequence."""
    load = inputs.load
    found = []
    for sequence in range(load.num_sequences):
        first = sequence * load.num_new
        own = [row for row in rows if first <= row < first + load.num_new]
        if own:
            positions = torch.tensor(own, device=inputs.query.device) - first + load.context - load.num_new
            found.append(_attend(inputs, sequence, own, positions, window, cap))
    return torch.cat(found)


def _attend(
    inputs: Inputs,
    sequence: int,
    rows: list[int],
    positions: torch.Tensor,
    window: int | None,
    cap: float | None,
) -> torch.Tensor:
    blocks, num_kv_heads = inputs.tables[sequence].long(), inputs.keys.shape[1]
    context, scales = inputs.load.context, inputs.scales
    keys = _read(inputs.keys, blocks).permute(1, 2, 0, 3).flatten(2)[..., :context]  # [kv_heads, dim, slots]
    values = _read(inputs.values, blocks).transpose(0, 1).flatten(1, 2)[:, :context]
    query = (
        inputs.query[rows].float().view(len(rows), num_kv_heads, -1, inputs.query.shape[2])
    )  # [rows, kv_heads, group, dim]
    scores = torch.einsum("rkgd,kds->rkgs", query, keys) * (scales.scores * scales.keys)
    if cap is not None:
        scores = cap * (scores / cap).tanh()
    distances = positions[:, None] - torch.arange(context, device=keys.device)  # [rows, slots]
    hidden = (distances < 0) | (distances >= (context if window is None else window))
    weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(dim=-1)
    return torch.einsum("rkgs,ksd->rkgd", weights, values).flatten(1, 2) * scales.values


def _read(pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """As bytes: not every type can be indexed everywhere."""
    return pool.view(torch.uint8)[blocks].view(pool.dtype).float()
