"""A step as tensors: one worked example, and what must hold of every one."""

import torch

from engine.batch import blank_batch, build_batch
from engine.step import Span
from tests.engine.paged import make_sequence

CPU = torch.device("cpu")


def test_a_ragged_step_becomes_these_tensors() -> None:
    decoding = make_sequence([5, 6, 7, 8, 9], [3, 1])
    prefilling = make_sequence([20, 21, 22, 23, 24, 25, 26], [7, 0, 2])

    batch = build_batch([Span(decoding, 4, 5), Span(prefilling, 2, 6)], 4, CPU)

    assert batch.token_ids.tolist() == [9, 22, 23, 24, 25]
    assert batch.positions.tolist() == [4, 2, 3, 4, 5]
    assert batch.slot_mapping.tolist() == [1 * 4, 7 * 4 + 2, 7 * 4 + 3, 0, 1]
    assert batch.block_tables.tolist() == [[3, 1], [7, 0]]
    assert batch.context_lens.tolist() == [5, 6]
    assert batch.cu_seqlens_q.tolist() == [0, 1, 5]
    assert batch.leaders.tolist() == [[], []]
    assert batch.drawing_rows.tolist() == [0]


def test_every_span_that_ends_its_sequence_draws_from_its_last_row() -> None:
    sequences = [make_sequence(list(range(length)), [length]) for length in (3, 1, 4)]

    batch = build_batch([Span(each, 0, each.num_tokens) for each in sequences], 16, CPU)

    assert batch.drawing_rows.tolist() == [2, 3, 7]


def test_blocks_past_the_end_of_a_span_are_left_out() -> None:
    ahead, other = make_sequence(list(range(40)), [9, 8, 7, 6]), make_sequence([1], [5])

    batch = build_batch([Span(ahead, 0, 16), Span(other, 0, 1)], 16, CPU)

    assert batch.block_tables.tolist() == [[9], [5]]


def test_tables_of_different_lengths_are_padded() -> None:
    short, long = make_sequence([1], [5]), make_sequence(list(range(33)), [4, 3, 2])

    batch = build_batch([Span(short, 0, 1), Span(long, 32, 33)], 16, CPU)

    assert batch.block_tables.tolist() == [[5, 0, 0], [4, 3, 2]]


def test_a_sequence_may_grow_while_its_batch_lives() -> None:
    sequence = make_sequence([1, 2], [0])

    batch = build_batch([Span(sequence, 0, 2)], 16, CPU)
    sequence.tokens.append(3)

    assert batch.token_ids.tolist() == [1, 2]


def test_proposed_tokens_follow_their_span_and_each_is_sampled_after() -> None:
    proposing = make_sequence([5, 6, 7, 8, 9], [3, 1])
    other = make_sequence([20, 21, 22], [7])
    prefilling = make_sequence([30, 31, 32], [2])
    spans = [Span(proposing, 4, 5, 3), Span(other, 2, 3, 3), Span(prefilling, 0, 2)]

    batch = build_batch(spans, 4, CPU, [[70, 71], [], []])

    assert batch.token_ids.tolist() == [9, 70, 71, 22, 30, 31]
    assert batch.positions.tolist() == [4, 5, 6, 2, 0, 1]
    assert batch.slot_mapping.tolist() == [4, 5, 6, 30, 8, 9]
    assert batch.context_lens.tolist() == [7, 3, 2]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 4, 6]
    assert batch.drawing_rows.tolist() == [0, 1, 2, 3]


def test_sequences_in_the_same_blocks_are_led_by_the_first() -> None:
    shared = list(range(40, 72))
    sequences = [
        make_sequence(list(range(600)), [*shared, *own])
        for own in ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18])
    ]
    sequences[2].block_table[20] = 99  # computed beside the others

    batch = build_batch([Span(each, 250, 600) for each in sequences], 16, CPU)

    assert batch.leaders.tolist() == [[0, 0], [0, 0], [0, 2]]


def test_a_blank_batch_stores_nothing_and_reads_one_block() -> None:
    batch = blank_batch(20, 16, CPU)

    assert set(batch.slot_mapping.tolist()) == {-1}
    assert batch.block_tables.tolist() == [[0, 0]]
    assert batch.context_lens.tolist() == [20]
    assert batch.drawing_rows.tolist() == [19]
