"""What a step's attention has to do: each token meets what it sees once, in its own blocks."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention_tiles import HeadShape, rows_of_partitions, rows_of_spans
from kernels.attention_work import SHORT_SPAN, AttentionWork, plan_attention, plan_tiles
from kernels.partitions import PARTITION_TOKENS, find_leaders

SHAPE = HeadShape(group=3, head_dim=64, block_size=64)
BLOCKS = PARTITION_TOKENS // 64
Family = list[tuple[int, int, int, int]]  # of each: an earlier one, partitions shared with it, own, span


@st.composite
def families(draw: st.DrawFn) -> Family:
    members: Family = []
    lengths: list[int] = []
    for row in range(draw(st.integers(1, 7))):
        earlier = draw(st.integers(0, max(row - 1, 0)))
        shared = draw(st.integers(0, lengths[earlier] // PARTITION_TOKENS)) if row else 0
        own = draw(st.integers(1, 600))
        members.append((earlier, shared, own, draw(st.integers(1, min(own, 60)))))
        lengths.append(shared * PARTITION_TOKENS + own)
    return members


def _tensors(family: Family) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = [shared * PARTITION_TOKENS + own for _, shared, own, _ in family]
    tables = torch.zeros(len(family), -(-max(lengths) // 64), dtype=torch.int32)
    for row, (earlier, shared, _, _) in enumerate(family):
        count = -(-lengths[row] // 64)
        tables[row, :count] = torch.arange(count) + 1 + 1000 * row
        tables[row, : shared * BLOCKS] = tables[earlier, : shared * BLOCKS]
    spans = torch.tensor([0] + [span for *_, span in family]).cumsum(0).int()
    leaders = torch.from_numpy(find_leaders(tables.numpy(), max(lengths), 64))
    return tables, torch.tensor(lengths, dtype=torch.int32), spans, leaders


def _plan(family: Family, num_padding: int = 0) -> AttentionWork:
    tables, lengths, spans, leaders = _tensors(family)
    return plan_attention(tables, lengths, spans, leaders, int(spans[-1]) + num_padding, SHAPE)


def _read(work: AttentionWork) -> list[tuple[int, int, int]]:
    """Token, partition and the sequence whose table is read for it, group by group."""
    short, found = work.short, []
    for (partition, first), count in zip(
        short.counts.nonzero().tolist(), short.counts[short.counts > 0].tolist(), strict=True
    ):
        members = short.members[partition, first : first + count]
        assert short.walks[first] > partition
        reader = int(short.sequences[members[0]])
        found += [(int(short.tokens[slot]), partition, reader) for slot in members]
    return found


@settings(max_examples=40)
@given(family=families(), num_padding=st.integers(0, 9))
def test_every_short_token_meets_every_partition_it_sees_once_in_its_own_blocks(
    family: Family, num_padding: int
) -> None:
    tables, lengths, spans, _ = _tensors(family)
    expected = set()
    for row, (*_, span) in enumerate(family):
        for place in range(span if span <= SHORT_SPAN else 0):
            visible = int(lengths[row]) - span + place + 1
            expected |= {(int(spans[row]) + place, p) for p in range(-(-visible // PARTITION_TOKENS))}

    found = _read(_plan(family, num_padding))

    assert len(found) == len(expected)
    assert {(token, partition) for token, partition, _ in found} == expected
    for token, partition, reader in found:
        own = int(torch.searchsorted(spans[1:], token, right=True))
        num_seen = min(-(-int(lengths[own]) // 64), (partition + 1) * BLOCKS)
        piece = slice(partition * BLOCKS, num_seen)
        assert torch.equal(tables[reader, piece], tables[own, piece])


@settings(max_examples=40)
@given(family=families(), num_padding=st.integers(0, 9))
def test_every_long_token_is_in_one_tile(family: Family, num_padding: int) -> None:
    *_, spans, _ = _tensors(family)
    long, room = _plan(family, num_padding).long, rows_of_spans(SHAPE) // SHAPE.group

    found: list[int] = []
    for sequence, first in zip(long.sequences.tolist(), long.first_tokens.tolist(), strict=True):
        if sequence >= 0:
            found += range(first, min(first + room, int(spans[sequence + 1])))

    ranges = [range(int(spans[row]), int(spans[row + 1])) for row in range(len(family))]
    assert sorted(found) == [token for each in ranges if len(each) > SHORT_SPAN for token in each]


@settings(max_examples=20)
@given(family=families())
def test_tiles_of_every_span_leave_no_token_out(family: Family) -> None:
    tables, lengths, spans, _ = _tensors(family)
    room, found = rows_of_spans(SHAPE) // SHAPE.group, []

    tiles = plan_tiles(tables, lengths, spans, int(spans[-1]), SHAPE)

    for sequence, first in zip(tiles.sequences.tolist(), tiles.first_tokens.tolist(), strict=True):
        if sequence >= 0:
            found += range(first, min(first + room, int(spans[sequence + 1])))
    assert sorted(found) == list(range(int(spans[-1])))


def test_forks_share_what_is_whole_and_proposals_share_what_is_not() -> None:
    room = rows_of_partitions(SHAPE) // SHAPE.group
    work = _plan([(0, 0, 300, 1)] + [(0, 1, 20, 2)] * 2)

    assert work.short.counts[0].tolist() == [5, 0, 0, 0, 0]
    assert work.short.counts[1].tolist() == [1, 2, 0, 2, 0]
    assert room >= 5


def test_a_group_is_no_larger_than_a_program_has_room_for() -> None:
    room = rows_of_partitions(SHAPE) // SHAPE.group
    work = _plan([(0, 0, 300, 1)] + [(0, 1, 20, 1)] * 11)

    assert work.short.counts[0].tolist() == [room] + [0] * (room - 1) + [12 - room] + [0] * (11 - room)


def test_decoding_has_no_tiles_and_a_chunk_has_those_of_its_size() -> None:
    assert len(_plan([(0, 0, 90, 1)] * 30).long.sequences) == 0
    assert _plan([(0, 0, 590, 60)]).long.first_tokens.tolist()[-2:] == [42, 0]


def test_padding_is_in_no_list() -> None:
    work = _plan([(0, 0, 90, 1)], num_padding=3)

    assert work.short.tokens[work.short.visible > 0].tolist() == [0]
    assert work.short.counts.sum() == 1
