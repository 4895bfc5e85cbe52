"""Whole steps: decoding by batch and context, prompts by length, and a model beside plain torch."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.batch import build_batch
from engine.graphs import Forward
from engine.kv_pool import KVPool
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.step import Step
from kernels import Kernels
from scripts.gpu_check.cases import distance
from scripts.gpu_check.clock import median_microseconds
from scripts.gpu_check.counts import forward
from scripts.gpu_check.judge import Meter
from scripts.gpu_check.model import Model, decode_step, make_weights, prompt_step
from scripts.gpu_check.row import Row
from scripts.gpu_check.shapes import Load, Shapes

__all__ = ["DECODE", "MODEL", "PROMPT", "bound_of", "decode_rows", "model_row", "prompt_row"]

MODEL, DECODE, PROMPT = "model", "decode step", "prefill"
_DECODE_TARGET = 0.75  # of one sequence's floor, nearly all of it weights


def bound_of(dtype: torch.dtype) -> float:
    """Of hidden states that were computed in two orders."""
    return 1e-4 if dtype == torch.float32 else 3e-2


def model_row(shapes: Shapes, device: torch.device) -> Row:
    """A prompt and then a token more, by the GPU's operations and by plain torch, over a pool full of NaN."""
    config, checked = replace(shapes.model, num_layers=shapes.steps.num_checked_layers), shapes.steps.checked
    spans = ((0, checked), (checked, checked + 1))
    steps = [prompt_step(start, end, shapes.block_size) for start, end in spans]
    found, expected = (
        _hidden(config, shapes, kernels, device, steps) for kernels in (Kernels.triton(), Kernels.reference())
    )
    return Row.judged(
        MODEL,
        f"{config.num_layers} layers, {checked:,} tokens and one",
        None,
        error=distance(found, expected),
        bound=bound_of(shapes.step_dtype),
    )


@torch.inference_mode()
def decode_rows(model: Model, load: Load, meter: Meter | None) -> list[Row]:
    """Steps as they are served, drawing and the way to the host included; for one sequence the forward pass
    alone as well. Recorded hidden states are held against the others.
    """
    shape = f"batch {load.num_sequences:,}, context {load.context:,}"
    if reason := model.lacks(load):
        return [Row.skipped(DECODE, shape, reason)]
    step = decode_step(load, model.pool.block_size)
    batch = build_batch(step.spans, model.pool.block_size, model.pool.device)
    plain = model.decoder.forward(batch, model.pool)
    error = distance(model.graphs.forward(batch, model.pool), plain)
    spans = [(span.start, span.end) for span in step.spans]
    itemsize, is_alone = model.pool.keys.itemsize, load.num_sequences == 1
    work = forward(model.config, spans, itemsize=itemsize, num_draws=len(spans))
    rows = []
    for is_recorded in (True, False):
        row = Row.judged(
            DECODE,
            f"{shape}, {'recorded' if is_recorded else 'not recorded'}",
            work,
            error=error,
            bound=bound_of(model.pool.keys.dtype),
            target=_DECODE_TARGET if is_recorded and is_alone else None,
        )
        rows.append(_timed_step(row, model, step, meter, is_recorded=is_recorded))
    if is_alone and meter is not None and not rows[0].is_bad:
        clock, yardsticks = meter
        forward_pass, _ = clock.measure(lambda: _logits(model.graphs, model, step), is_recorded=False)
        alone = replace(rows[0], shape=f"{shape}, recorded, on the device alone", target=None)
        rows.append(alone.timed(forward_pass, yardsticks))
    return rows


@torch.inference_mode()
def prompt_row(model: Model, num_tokens: int, meter: Meter | None) -> Row:
    """One prompt at once. Its last token's hidden state is held against that of the same token decoded."""
    size, pool = model.pool.block_size, model.pool
    step = prompt_step(0, num_tokens, size)
    at_once = model.decoder.forward(build_batch(step.spans, size, pool.device), pool)[-1:]
    parts = [prompt_step(0, num_tokens - 1, size), prompt_step(num_tokens - 1, num_tokens, size)]
    decoded = [model.decoder.forward(build_batch(part.spans, size, pool.device), pool) for part in parts][-1]
    row = Row.judged(
        PROMPT,
        f"{num_tokens:,} tokens",
        forward(model.config, [(0, num_tokens)], itemsize=pool.keys.itemsize, num_draws=1),
        error=distance(at_once, decoded),
        bound=bound_of(pool.keys.dtype),
    )
    return _timed_step(row, model, step, meter, is_recorded=False)


def _timed_step(row: Row, model: Model, step: Step, meter: Meter | None, *, is_recorded: bool) -> Row:
    """With the time of a step by the host's clock: what it brings is there when it is over."""
    runner = model.runner(is_recorded=is_recorded)
    if row.is_bad or meter is None:
        runner.run(step)
        return row
    _, yardsticks = meter
    microseconds = median_microseconds(lambda: runner.run(step))
    return row.timed(microseconds, yardsticks, rate=f"{step.num_tokens / microseconds * 1e6:,.0f} tokens/s")


def _logits(forward_pass: Forward, model: Model, step: Step) -> torch.Tensor:
    batch = build_batch(step.spans, model.pool.block_size, model.pool.device)
    return forward_pass.logits(forward_pass.forward(batch, model.pool))


@torch.inference_mode()
def _hidden(
    config: ModelConfig, shapes: Shapes, kernels: Kernels, device: torch.device, steps: Sequence[Step]
) -> torch.Tensor:
    """Of every token of some steps, one after the other."""
    dtype, size = shapes.step_dtype, shapes.block_size
    decoder = Decoder(config, make_weights(config, dtype, device), kernels)
    num_blocks = -(-(shapes.steps.checked + 1) // size)
    pool = KVPool(config, num_blocks, size, dtype=dtype, device=device, operations=kernels)
    for tensor in (pool.keys, pool.values):
        tensor.fill_(torch.nan)
    return torch.cat([decoder.forward(build_batch(step.spans, size, device), pool) for step in steps])
