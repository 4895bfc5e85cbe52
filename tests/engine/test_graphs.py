"""Recorded decoding: the same answers, whatever the padding. What runs again stands for a GPU's recorder."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from engine.batch import Batch, build_batch
from engine.graphs import GraphedDecoder, recorded_sizes
from engine.kv_pool import KVPool
from engine.models.decoder import Decoder
from engine.step import Span
from engine.weights import load
from kernels import Kernels
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.engine.paged import make_pool, make_sequence

CPU = torch.device("cpu")


def record_eagerly(function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    written = function().clone()

    def replay() -> None:
        written.copy_(function())

    return replay, written


@dataclass
class Counted:
    """A decoder that remembers how many tokens its passes had, and who led them."""

    decoder: Decoder
    sizes: list[int] = field(default_factory=list)
    leaders: list[torch.Tensor] = field(default_factory=list)

    def forward(self, batch: Batch, pool: KVPool) -> torch.Tensor:
        self.sizes.append(len(batch.token_ids))
        self.leaders.append(batch.leaders.clone())
        return self.decoder.forward(batch, pool)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path = write_checkpoint(
        random_model("llama", max_position_embeddings=1024), tmp_path_factory.mktemp("tiny")
    )
    model, weights = load(str(path), torch.float32)
    return Decoder(model, weights, Kernels.reference())


def spans_of(lengths: list[int], *, shared: int = 0) -> list[Span]:
    """The last token of each of so many sequences; the first `shared` blocks are one and the same."""
    spans, next_block = [], 1 + shared
    for place, length in enumerate(lengths):
        num_own = -(-length // 16) - shared
        blocks = [*range(1, 1 + shared), *range(next_block, next_block + num_own)]
        next_block += num_own
        tokens = [(7 * place + position) % 101 for position in range(length)]
        spans.append(Span(make_sequence(tokens, blocks), length - 1, length))
    return spans


def filled_pool(decoder: Decoder, num_blocks: int) -> KVPool:
    pool = make_pool(decoder.config, Kernels.reference(), num_blocks)
    generator = torch.Generator().manual_seed(3)
    for tensor in (pool.keys, pool.values):
        tensor[:, 1:] = torch.randn(tensor[:, 1:].shape, generator=generator)  # block 0 stays NaN
    return pool


def graphed(decoder: Counted, pool: KVPool, max_sequences: int = 8) -> GraphedDecoder:
    with torch.inference_mode():
        made = GraphedDecoder(
            decoder, pool, max_sequences=max_sequences, max_context=640, record=record_eagerly
        )
    decoder.sizes.clear()
    decoder.leaders.clear()
    return made


@torch.inference_mode()
def both(decoder: Decoder, spans: list[Span]) -> tuple[list[int], KVPool, KVPool]:
    """Runs a step with and without recordings and compares; returns the passes' sizes and both pools."""
    plain, pool = filled_pool(decoder, 160), filled_pool(decoder, 160)
    counted = Counted(decoder)
    recorded = graphed(counted, pool)
    batch = build_batch(spans, 16, CPU)

    torch.testing.assert_close(recorded.forward(batch, pool), decoder.forward(batch, plain))
    return counted.sizes, plain, pool


def test_sizes_are_close_and_end_with_the_most_sequences() -> None:
    assert recorded_sizes(1) == [1]
    assert recorded_sizes(5) == [1, 2, 4, 5]
    assert recorded_sizes(100) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100]


@pytest.mark.parametrize("num_sequences", [1, 2, 3, 5, 8])
def test_a_decoding_step_is_replayed_and_padded(decoder: Decoder, num_sequences: int) -> None:
    sizes, plain, pool = both(decoder, spans_of([1, 17, 300, 37, 16, 2, 40, 33][:num_sequences]))

    assert sizes == [next(size for size in (1, 2, 4, 8) if size >= num_sequences)]
    torch.testing.assert_close(pool.keys, plain.keys, equal_nan=True)
    torch.testing.assert_close(pool.values, plain.values, equal_nan=True)


def test_leaders_are_those_of_the_step(decoder: Decoder) -> None:
    sizes, _, _ = both(decoder, spans_of([300, 290, 301], shared=16))

    assert sizes == [4]


def test_who_leads_a_replayed_step_is_its_own_whatever_the_last_one_was(decoder: Decoder) -> None:
    """Two partitions in common; then one, of fewer sequences and shorter ones; then none."""
    pool, counted = filled_pool(decoder, 160), Counted(decoder)
    recorded = graphed(counted, pool)
    steps = [spans_of([600, 590, 601, 610], shared=32), spans_of([300, 290, 301], shared=16)]

    with torch.inference_mode():
        for spans in [*steps, spans_of([1, 5, 9])]:
            recorded.forward(build_batch(spans, 16, CPU), pool)

    alone = [[place, place] for place in range(4)]
    assert [each.tolist() for each in counted.leaders] == [
        [[0, 0]] * 4,
        [[0, 0], [0, 1], [0, 2], [3, 3]],
        alone,
    ]


def test_a_step_leaves_nothing_to_the_next(decoder: Decoder) -> None:
    pool, plain = filled_pool(decoder, 160), filled_pool(decoder, 160)
    recorded = graphed(Counted(decoder), pool)
    steps = [spans_of([300, 290, 301, 310], shared=16), spans_of([280, 277, 270, 290]), spans_of([1, 5, 9])]

    with torch.inference_mode():
        for spans in steps:
            batch = build_batch(spans, 16, CPU)
            found, expected = recorded.forward(batch, pool), decoder.forward(batch, plain)
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(pool.keys, plain.keys, equal_nan=True)


def test_prompts_crowds_and_long_contexts_are_not_replayed(decoder: Decoder) -> None:
    prompt = spans_of([40])
    prompt = [Span(prompt[0].sequence, 0, 40)]

    assert both(decoder, prompt)[0] == [40]
    assert both(decoder, spans_of([3] * 9))[0] == [9]
    assert both(decoder, spans_of([700, 5, 6]))[0] == [3]


def test_another_pool_is_not_replayed(decoder: Decoder) -> None:
    pool, other = filled_pool(decoder, 8), filled_pool(decoder, 8)
    counted = Counted(decoder)
    recorded = graphed(counted, pool)

    with torch.inference_mode():
        recorded.forward(build_batch(spans_of([5, 6, 7]), 16, CPU), other)

    assert counted.sizes == [3]


def test_the_largest_is_recorded_first_and_progress_is_seen(decoder: Decoder) -> None:
    seen: list[int] = []
    counted = Counted(decoder)

    with torch.inference_mode():
        GraphedDecoder(
            counted,
            filled_pool(decoder, 4),
            max_sequences=4,
            max_context=32,
            record=record_eagerly,
            progress=lambda sizes: (seen.append(size) or size for size in sizes),  # type: ignore[func-returns-value]
        )

    assert seen == [4, 2, 1]
    assert counted.sizes == [4, 2, 1]
