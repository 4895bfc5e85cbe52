"""Paged attention: the definition against torch's own, and the compiled kernel against the definition."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels import Kernels
from kernels.cpu.amx import is_usable
from kernels.cpu.attention_ways import COLUMNS, DOTS, REGISTERS, way_for
from kernels.cpu.paged_attention import paged_attention
from tests.kernels.pools import AttentionCase, Shape, attention_case

SHAPES = [Shape(6, 2, 64, 16), Shape(3, 3, 32, 16), Shape(8, 1, 24, 32), Shape(20, 4, 80, 16)]
WIDE_SHAPES = [Shape(8, 1, 128, 64), Shape(3, 1, 96, 32), Shape(2, 2, 16, 16), Shape(8, 1, 80, 64)]
SPANS = [(1, 1), (16, 16), (17, 17), (37, 1), (37, 5), (300, 50), (513, 1)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
# Those that this machine has; where the instruction for dot products is missing, that way does without.
WAYS = [COLUMNS, DOTS] + [REGISTERS] * is_usable()


def _attend(case: AttentionCase, way: int | None = None) -> torch.Tensor:
    """What the compiled kernel makes of a case in the reference's order."""
    query, *rest, scale = case.on_cpu().arguments()
    return paged_attention(query, *rest, scale, way=way)  # type: ignore[arg-type]


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

    found = Kernels.cpu().paged_attention(*case.on_cpu().arguments())

    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[dtype], rtol=1e-2)


def _suits(way: int, shape: Shape) -> bool:
    """Tile registers take whole vectors of dimensions; for other heads the way is never chosen."""
    return way != REGISTERS or shape.head_dim % 16 == 0


@pytest.mark.parametrize("shape", SHAPES + WIDE_SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_agrees_with_the_reference(way: int, shape: Shape) -> None:
    case = attention_case(SPANS, shape, torch.bfloat16)
    if not _suits(way, shape):
        assert way_for(torch.bfloat16, shape.head_dim) != way
        return

    found = _attend(case, way)

    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[torch.bfloat16], rtol=1e-2)


@pytest.mark.parametrize("length", [*range(1, 34), 255, 257])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_never_written_reaches_no_result(way: int, length: int) -> None:
    case = attention_case([(length, 1)], SHAPES[0], torch.bfloat16)
    assert case.keys[case.block_tables[0].long()].isnan().any() == (length % 16 != 0)

    found = _attend(case, way)

    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[torch.bfloat16], rtol=1e-2)


def test_one_visible_token_gives_its_very_value() -> None:
    case = attention_case([(1, 1)], SHAPES[0], torch.bfloat16)

    for way in WAYS:
        expected = case.values[int(case.block_tables[0, 0]), :, 0].repeat_interleave(3, dim=0)
        assert torch.equal(_attend(case, way)[0], expected)


def _alone(case: AttentionCase, sequence: int) -> AttentionCase:
    start, end = case.cu_seqlens_q[sequence : sequence + 2].tolist()
    rows = slice(sequence, sequence + 1)
    return replace(
        case,
        query=case.query[start:end],
        block_tables=case.block_tables[rows],
        context_lens=case.context_lens[rows],
        cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
        leaders=case.leaders[:1, :0],
    )


@pytest.mark.parametrize("sequence", range(len(SPANS)))
@pytest.mark.parametrize("way", WAYS)
def test_a_sequence_alone_gets_the_very_bits_that_it_gets_in_company(way: int, sequence: int) -> None:
    case = attention_case(SPANS, SHAPES[0], torch.bfloat16)
    start, end = case.cu_seqlens_q[sequence : sequence + 2].tolist()

    together = _attend(case, way)[start:end]

    assert torch.equal(_attend(_alone(case, sequence), way), together)


FORMS = [(torch.float32, COLUMNS), *((torch.bfloat16, way) for way in WAYS)]


@pytest.mark.parametrize(("dtype", "way"), FORMS)
def test_a_token_gets_the_very_bits_that_it_gets_in_a_longer_span(dtype: torch.dtype, way: int) -> None:
    case = attention_case([(300, 300)], SHAPES[0], dtype)

    whole = _attend(case, way)

    for start, end in (
        (0, 1),
        (15, 16),
        (16, 18),
        (200, 207),
        (255, 256),
        (250, 300),
        (256, 257),
        (299, 300),
    ):
        chunk = replace(
            case,
            query=case.query[start:end].contiguous(),
            context_lens=torch.tensor([end], dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
        )
        assert torch.equal(_attend(chunk, way), whole[start:end])


@pytest.mark.parametrize(("dtype", "way"), FORMS)
def test_great_scores_in_a_late_segment_do_not_overflow(dtype: torch.dtype, way: int) -> None:
    case = attention_case([(513, 1)], SHAPES[0], dtype)
    case = replace(case, query=case.query * 1000)

    found = _attend(case, way)

    expected = Kernels.reference().paged_attention(*case.arguments())
    atol, rtol = (1e-4, 1e-3) if dtype == torch.float32 else (4e-3, 1e-2)
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize(("dtype", "way"), FORMS)
@pytest.mark.parametrize("position", [3, 15, 19])
def test_a_key_that_is_not_a_number_shows(position: int, dtype: torch.dtype, way: int) -> None:
    case = attention_case([(20, 1)], SHAPES[0], dtype)
    case.keys[case.block_tables[0, position // 16], 0, :, position % 16] = torch.nan

    found = _attend(case, way)[0]

    assert found[:3].isnan().all()
    assert not found[3:].isnan().any()


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
@example(family=NESTED, shape=Shape(9, 3, 64, 16), form=FORMS[-1])
@example(family=LEADER_ENDS_EARLY, shape=Shape(3, 1, 80, 16), form=FORMS[0])
@example(family=LAST_OF_A_PARTITION, shape=Shape(2, 2, 16, 16), form=FORMS[0])
@example(family=CHUNKS, shape=Shape(9, 3, 64, 16), form=FORMS[0])
@example(family=FORKS, shape=Shape(2, 2, 16, 16), form=FORMS[-1])
@given(
    family=families(),
    shape=st.sampled_from([Shape(2, 2, 16, 16), Shape(6, 2, 64, 16), Shape(3, 1, 80, 16)]),
    form=st.sampled_from(FORMS),
)
def test_what_is_read_together_comes_to_the_very_bits_of_what_is_read_alone(
    family: Family, shape: Shape, form: tuple[torch.dtype, int]
) -> None:
    dtype, way = form
    case = _family_case(family, shape, dtype)

    found = _attend(case, way)

    alone = replace(case, leaders=case.leaders[:, :0])
    assert torch.equal(found, _attend(alone, way))
    expected = Kernels.reference().paged_attention(*case.arguments())
    torch.testing.assert_close(found, expected, atol=TOLERANCES[dtype], rtol=1e-2)
