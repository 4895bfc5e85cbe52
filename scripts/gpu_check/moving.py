"""Blocks on their way: copied before a step writes to them, and swapped between a GPU and its host."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from engine.step import Step
from prefix_cache.plan import BlockCopy, BlockId, Tier
from scripts.gpu_check.cases import share_different, worst
from scripts.gpu_check.clock import median_microseconds
from scripts.gpu_check.counts import moved
from scripts.gpu_check.judge import Meter
from scripts.gpu_check.model import Model, decode_step
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import Load, StepShapes

__all__ = ["COPY", "SWAP", "copy_row", "swap_rows"]

COPY, SWAP = "copy on write", "swap"
_NUM_STEPS_BESIDE = 24


def copy_row(model: Model, steps: StepShapes, meter: Meter | None) -> Row:
    """A step's copies as the pool carries them out, the plan's way to the device included."""
    pool, half = model.pool, steps.num_moved
    copies = [
        BlockCopy(Tier.DEVICE, BlockId(each), Tier.DEVICE, BlockId(half + each), num_tokens=1)
        for each in range(half)
    ]
    pool.copy(copies)
    sources, targets = slice(0, half), slice(half, 2 * half)
    error = worst(
        *(share_different(tensor[:, targets], tensor[:, sources]) for tensor in (pool.keys, pool.values))
    )
    num_bytes = half * pool.bytes_per_block
    row = Row.judged(COPY, f"{half:,} blocks", moved(num_bytes), error=error, bound=0.0)
    if row.is_bad or meter is None:
        return row
    clock, yardsticks = meter
    microseconds, _ = clock.measure(lambda: _copied(model, copies), is_recorded=False)
    return row.timed(microseconds, yardsticks, rate=f"{num_bytes / microseconds / 1e3:,.1f} GB/s copied")


def swap_rows(model: Model, steps: StepShapes, meter: Meter | None) -> list[Row]:
    """Each way, alone and beside decoding steps, to and from pinned memory."""
    pool, half = model.pool, steps.num_moved
    host = torch.empty(half, pool.bytes_per_block, dtype=torch.uint8, pin_memory=pool.device.type == "cuda")
    first, second = range(half), range(half, 2 * half)
    blocks = [BlockId(each) for each in first], [BlockId(each) for each in second]
    ways: list[tuple[str, Callable[[], None]]] = [
        ("to the host", lambda: pool.gather(blocks[0], host)),
        ("from the host", lambda: pool.scatter(blocks[1], host)),
    ]
    for _, move in ways:
        move()
    error = _swap_error(model, host, half)
    load = Load(max(steps.batches), min(steps.contexts))
    rows = []
    for name, move in ways:
        row = Row.judged(SWAP, f"{half:,} blocks {name}", None, error=error, bound=0.0)
        beside = replace(row, shape=f"{row.shape}, beside decoding {load}")
        if row.is_bad or meter is None:
            rows += [row, beside]
            continue
        rows.append(_timed_move(row, median_microseconds(move), host.nbytes, meter))
        if reason := model.lacks(load, 2 * half):
            rows.append(Row.skipped(SWAP, beside.shape, reason))
            continue
        step = decode_step(load, pool.block_size, 2 * half)  # moved blocks are nobody's
        moving, alone, together = _beside_steps(model, step, move)
        beside = replace(beside, note=f"a step took {together:,.0f} µs beside it and {alone:,.0f} alone")
        rows.append(_timed_move(beside, moving, host.nbytes, meter))
    return rows


def _copied(model: Model, copies: list[BlockCopy]) -> torch.Tensor:
    model.pool.copy(copies)
    return model.pool.keys


def _swap_error(model: Model, host: torch.Tensor, half: int) -> float:
    """What came back, and what lies on the host: a block's keys layer by layer, then its values."""
    parts = []
    for tensor, lines in zip((model.pool.keys, model.pool.values), host.chunk(2, dim=1), strict=True):
        origin, arrived = tensor[:, :half].cpu(), tensor[:, half : 2 * half].cpu()
        on_host = lines.view(tensor.dtype).view(half, len(tensor), *tensor.shape[2:]).transpose(0, 1)
        parts += [share_different(arrived, origin), share_different(on_host, origin)]
    return worst(*parts)


def _timed_move(row: Row, microseconds: float, num_bytes: int, meter: Meter) -> Row:
    return row.timed(microseconds, meter[1], rate=f"{num_bytes / microseconds / 1e3:,.1f} GB/s")


def _beside_steps(model: Model, step: Step, move: Callable[[], None]) -> tuple[float, float, float]:
    """Microseconds of a move while steps run, of a step without moves, and of a step while blocks move.

    Moves have a thread of their own, as they do when the engine serves.
    """
    runner = model.runner(is_recorded=True)
    alone = median_microseconds(lambda: runner.run(step), _NUM_STEPS_BESIDE)
    with ThreadPoolExecutor(1) as mover:
        moving = mover.submit(median_microseconds, move, _NUM_STEPS_BESIDE)
        together: list[float] = []
        while not (together and moving.done()):
            started = time.perf_counter()
            runner.run(step)
            together.append(1e6 * (time.perf_counter() - started))
        return moving.result(), alone, statistics.median(together)
