"""Attention over paged keys and values: decoding, prompts, windows and caps."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from kernels.attention_work import QueryTiles, ShortSpans
from kernels.capped_attention import attend_capped
from kernels.merge_partitions import merge_partitions, merge_partitions_reference
from kernels.paged_attention import attend
from kernels.partition_attention import PartitionSums, attend_partitions, choose_splits
from kernels.partitions import PARTITION_TOKENS
from kernels.span_attention import attend_spans
from kernels.windowed_attention import attend_window
from scripts.gpu_check import counts
from scripts.gpu_check.attention_inputs import Inputs, attended_rows, make_inputs, picked_rows
from scripts.gpu_check.cases import Case, Trial, distance
from scripts.gpu_check.shapes import Load, Shapes
from scripts.gpu_check.store_kernels import EIGHT_BITS, refuse_eight_bits

__all__ = ["attention_cases"]

DTYPE = torch.bfloat16
_DECODE_TARGET, _PREFILL_TARGET = 0.80, 0.55


class _Kind(NamedTuple):
    """One way to attend by tiles."""

    name: str
    attend: Callable[[Inputs, QueryTiles, torch.Tensor], None]
    window: int | None = None
    cap: float | None = None


def attention_cases(shapes: Shapes) -> list[Case]:
    """Those of decoding by load, whole and in their two launches; then what goes by tiles."""
    kernels = shapes.kernels
    cases = [case for load in kernels.decodes for case in _decode_cases(shapes, load)]
    cases.append(_decode_case(shapes, kernels.decodes[0], EIGHT_BITS))
    span = _Kind("span_attention", _attend_spans)
    windowed = _Kind("windowed_attention", partial(_attend_window, kernels.window), window=kernels.window)
    capped = _Kind("capped_attention", partial(_attend_capped, kernels.cap), cap=kernels.cap)
    cases += [_tile_case(shapes, kind, kernels.prefill, DTYPE) for kind in (span, windowed, capped)]
    cases.append(_tile_case(shapes, span, kernels.prefill, EIGHT_BITS))
    cases += [_tile_case(shapes, kind, kernels.decodes[0], DTYPE) for kind in (windowed, capped)]
    return cases


def _decode_cases(shapes: Shapes, load: Load) -> list[Case]:
    heads = counts.Heads.of(shapes.model)
    return [
        _decode_case(shapes, load, DTYPE),
        Case(
            name="partition_attention",
            shape=str(load),
            work=counts.partition_attention(
                load, heads, itemsize=DTYPE.itemsize, pool_itemsize=DTYPE.itemsize, partition=PARTITION_TOKENS
            ),
            bound=shapes.kernels.bounds.attention,
            make=partial(_partitions, shapes, load),
        ),
        Case(
            name="merge_partitions",
            shape=str(load),
            work=counts.merge_partitions(load, heads, itemsize=DTYPE.itemsize, partition=PARTITION_TOKENS),
            bound=shapes.kernels.bounds.rounded,
            make=partial(_merge, shapes, load),
        ),
    ]


def _decode_case(shapes: Shapes, load: Load, pool_dtype: torch.dtype) -> Case:
    is_alone = load.num_shared == 0
    return Case(
        name="decode_attention" if pool_dtype == DTYPE else "decode_attention, 8 bits",
        shape=str(load),
        work=counts.attention(
            load,
            counts.Heads.of(shapes.model),
            itemsize=DTYPE.itemsize,
            pool_itemsize=pool_dtype.itemsize,
        ),
        bound=shapes.kernels.bounds.attention,
        make=partial(_decode, shapes, load, pool_dtype),
        target=_DECODE_TARGET if is_alone and pool_dtype == DTYPE else None,
    )


def _tile_case(shapes: Shapes, kind: _Kind, load: Load, pool_dtype: torch.dtype) -> Case:
    is_plain = kind.window is None and kind.cap is None and pool_dtype == DTYPE
    return Case(
        name=kind.name if pool_dtype == DTYPE else f"{kind.name}, 8 bits",
        shape=str(load) + ("" if kind.window is None else f", window {kind.window:,}"),
        work=counts.attention(
            load,
            counts.Heads.of(shapes.model),
            itemsize=DTYPE.itemsize,
            pool_itemsize=pool_dtype.itemsize,
            window=kind.window,
        ),
        bound=shapes.kernels.bounds.attention,
        make=partial(_tiles, shapes, kind, load, pool_dtype),
        target=_PREFILL_TARGET if is_plain else None,
    )


def _decode(shapes: Shapes, load: Load, pool_dtype: torch.dtype, device: torch.device) -> Trial:
    if pool_dtype == EIGHT_BITS:
        refuse_eight_bits(device)
    inputs = make_inputs(load, shapes, device, pool_dtype)
    work = inputs.plan()
    return Trial(
        run=lambda: attend(inputs.query, inputs.keys, inputs.values, work, inputs.scales),
        error=partial(_error, inputs),
    )


def _sums(inputs: Inputs, short: ShortSpans) -> PartitionSums:
    num_partitions, num_slots = short.counts.shape
    splits = choose_splits(num_partitions, num_slots, inputs.keys.shape[1])
    return attend_partitions(
        inputs.query, inputs.keys, inputs.values, short, inputs.scales, num_splits=splits
    )


def _partitions(shapes: Shapes, load: Load, device: torch.device) -> Trial:
    """Its sums are joined in plain torch to be held against the reference."""
    inputs = make_inputs(load, shapes, device)
    short = inputs.plan().short
    written: list[PartitionSums] = []

    def run() -> torch.Tensor:
        written[:] = [_sums(inputs, short)]
        return written[0].outs

    def error(_: torch.Tensor) -> float:
        out = torch.empty_like(inputs.query)
        merge_partitions_reference(written[0], short, out)
        return _error(inputs, out)

    return Trial(run, error)


def _merge(shapes: Shapes, load: Load, device: torch.device) -> Trial:
    inputs = make_inputs(load, shapes, device)
    short = inputs.plan().short
    parts = _sums(inputs, short)
    out = torch.empty_like(inputs.query)
    expected = torch.empty_like(out)
    merge_partitions_reference(parts, short, expected)

    def run() -> torch.Tensor:
        merge_partitions(parts, short, out)
        return out

    return Trial(run, lambda found: distance(found, expected))


def _tiles(shapes: Shapes, kind: _Kind, load: Load, pool_dtype: torch.dtype, device: torch.device) -> Trial:
    if pool_dtype == EIGHT_BITS:
        refuse_eight_bits(device)
    inputs = make_inputs(load, shapes, device, pool_dtype)
    tiles, out = inputs.tiles(), torch.empty_like(inputs.query)

    def run() -> torch.Tensor:
        kind.attend(inputs, tiles, out)
        return out

    return Trial(run, partial(_error, inputs, window=kind.window, cap=kind.cap))


def _error(
    inputs: Inputs, found: torch.Tensor, *, window: int | None = None, cap: float | None = None
) -> float:
    rows = picked_rows(inputs.load)
    return distance(found[rows], attended_rows(inputs, rows, window=window, cap=cap))


def _attend_spans(inputs: Inputs, tiles: QueryTiles, out: torch.Tensor) -> None:
    attend_spans(inputs.query, inputs.keys, inputs.values, tiles, inputs.scales, out)


def _attend_window(window: int, inputs: Inputs, tiles: QueryTiles, out: torch.Tensor) -> None:
    attend_window(inputs.query, inputs.keys, inputs.values, tiles, inputs.scales, out, window=window)


def _attend_capped(cap: float, inputs: Inputs, tiles: QueryTiles, out: torch.Tensor) -> None:
    attend_capped(inputs.query, inputs.keys, inputs.values, tiles, inputs.scales, out, cap=cap)
