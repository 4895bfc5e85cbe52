"""Paged attention: the definition against torch's own, and the compiled kernel against the definition."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels import Kernels
from tests.kernels.pools import AttentionCase, Shape, attention_case

SHAPES = [Shape(6, 2, 64, 16), Shape(3, 3, 32, 16), Shape(8, 1, 24, 32), Shape(20, 4, 80, 16)]
SPANS = [(1, 1), (16, 16), (17, 17), (37, 1), (37, 5), (300, 50), (513, 1)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-3}


def test_the_reference_is_causal_attention() -> None:
    case = attention_case([(37, 37)], Shape(4, 2, 16, 16), torch.float32)
    blocks = case.block_tables[0].long()
    key = case.keys[blocks].permute(1, 0, 3, 2).flatten(1, 2)[:, :37]
    value = case.values[blocks].transpose(0, 1).flatten(1, 2)[:, :37]

    found = Kernels.reference().paged_attention(*case.arguments())

    query = case.query.transpose(0, 1)
    expected = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(found, expected.transpose(0, 1))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_compiled_kernel_agrees_with_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    case = attention_case(SPANS, shape, dtype)

    found = Kernels.cpu().paged_attention(*case.arguments())

    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[dtype], rtol=1e-2)


def _alone(case: AttentionCase, sequence: int) -> tuple[torch.Tensor | float, ...]:
    start, end = case.cu_seqlens_q[sequence : sequence + 2].tolist()
    rows = slice(sequence, sequence + 1)
    lengths = torch.tensor([0, end - start], dtype=torch.int32)
    query, tables, lens = case.query[start:end], case.block_tables[rows], case.context_lens[rows]
    return query, case.keys, case.values, tables, lens, lengths, case.leaders[:1, :0], case.scale


@pytest.mark.parametrize("sequence", range(len(SPANS)))
def test_a_sequence_alone_gets_the_very_bits_that_it_gets_in_company(sequence: int) -> None:
    case = attention_case(SPANS, SHAPES[0], torch.bfloat16)
    start, end = case.cu_seqlens_q[sequence : sequence + 2].tolist()

    together = Kernels.cpu().paged_attention(*case.arguments())[start:end]

    assert torch.equal(Kernels.cpu().paged_attention(*_alone(case, sequence)), together)


def test_a_token_gets_the_very_bits_that_it_gets_in_a_longer_span() -> None:
    case = attention_case([(300, 300)], SHAPES[0], torch.float32)

    whole = Kernels.cpu().paged_attention(*case.arguments())

    for position in (0, 15, 16, 255, 256, 299):
        single = Kernels.cpu().paged_attention(
            case.query[position : position + 1].contiguous(),
            case.keys,
            case.values,
            case.block_tables,
            torch.tensor([position + 1], dtype=torch.int32),
            torch.tensor([0, 1], dtype=torch.int32),
            case.leaders,
            case.scale,
        )
        assert torch.equal(single[0], whole[position])


def test_great_scores_in_a_late_segment_do_not_overflow() -> None:
    case = attention_case([(513, 1)], SHAPES[0], torch.float32)
    arguments = (case.query * 1000, *case.arguments()[1:])

    found = Kernels.cpu().paged_attention(*arguments)

    torch.testing.assert_close(found, Kernels.reference().paged_attention(*arguments), atol=1e-4, rtol=1e-3)


def test_a_key_that_is_not_a_number_shows() -> None:
    case = attention_case([(20, 1)], SHAPES[0], torch.float32)
    case.keys[case.block_tables[0, 0], 0, :, 3] = torch.nan

    assert Kernels.cpu().paged_attention(*case.arguments()).isnan().any()


def test_blocks_that_do_not_fill_vectors_are_refused() -> None:
    case = attention_case([(20, 1)], Shape(2, 2, 32, 8), torch.float32)

    with pytest.raises(ValueError, match="multiple of 16"):
        Kernels.cpu().paged_attention(*case.arguments())


Family = list[tuple[int, int, int, int]]  # of each: an earlier one, blocks shared with it, own tokens, query

NESTED: Family = [(0, 0, 600, 1)] + [(0, 32, own, 1) for own in (1, 90)] + [(1, 16, 300, 1), (3, 32, 200, 1)]
LEADER_ENDS_EARLY: Family = [(0, 0, 300, 1), (0, 16, 700, 1), (1, 48, 10, 1)]
LAST_OF_A_PARTITION: Family = [(0, 0, 512, 1), (0, 16, 256, 1), (0, 31, 16, 2), (0, 31, 15, 1), (0, 32, 1, 9)]
CHUNKS: Family = [(0, 0, 520, 1), (0, 32, 100, 30), (0, 32, 5, 5), (0, 16, 300, 300)]
FORKS: Family = [(0, 0, 530, 1)] + [(0, 32, 20, 1)] * 40  # more than one task takes


@st.composite
def families(draw: st.DrawFn) -> Family:
    members: Family = [(0, 0, draw(st.integers(1, 700)), 1)]
    lengths = [members[0][2]]
    for _ in range(draw(st.integers(1, 6))):
        earlier = draw(st.integers(0, len(members) - 1))
        num_shared = draw(st.integers(0, lengths[earlier] // 16))
        own = draw(st.integers(1, 400))
        members.append((earlier, num_shared, own, draw(st.integers(1, min(own, 20)))))
        lengths.append(num_shared * 16 + own)
    return members


def _family_case(family: Family, shape: Shape, dtype: torch.dtype) -> AttentionCase:
    spans = [(num_shared * 16 + own, query) for _, num_shared, own, query in family]
    return attention_case(spans, shape, dtype, [(earlier, count) for earlier, count, _, _ in family])


@settings(max_examples=30)
@example(family=NESTED, shape=Shape(9, 3, 64, 16), dtype=torch.bfloat16)
@example(family=LEADER_ENDS_EARLY, shape=Shape(3, 1, 80, 16), dtype=torch.float32)
@example(family=LAST_OF_A_PARTITION, shape=Shape(2, 2, 16, 16), dtype=torch.float32)
@example(family=CHUNKS, shape=Shape(9, 3, 64, 16), dtype=torch.float32)
@example(family=FORKS, shape=Shape(2, 2, 16, 16), dtype=torch.bfloat16)
@given(
    family=families(),
    shape=st.sampled_from([Shape(2, 2, 16, 16), Shape(6, 2, 64, 16), Shape(3, 1, 80, 16)]),
    dtype=st.sampled_from(list(TOLERANCES)),
)
def test_what_is_read_together_comes_to_the_very_bits_of_what_is_read_alone(
    family: Family, shape: Shape, dtype: torch.dtype
) -> None:
    case = _family_case(family, shape, dtype)

    found = Kernels.cpu().paged_attention(*case.arguments())

    alone = replace(case, leaders=case.leaders[:, :0])
    assert torch.equal(found, Kernels.cpu().paged_attention(*alone.arguments()))
    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[dtype], rtol=1e-2)
