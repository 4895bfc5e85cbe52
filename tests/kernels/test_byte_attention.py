"""Keys and values of 8 bits: stored and attended to, by every way there is, against the definition."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from engine.loading import load_runner
from engine.messages import EngineConfig
from kernels import Kernels
from kernels.byte_cache import STEP_BYTES, read_heads, round_heads
from kernels.cpu.amx import is_usable
from kernels.cpu.attention_ways import BYTE_REGISTERS, BYTES
from kernels.cpu.paged_attention import paged_attention
from tests.engine.checkpoints import random_model, write_checkpoint
from tests.kernels.pools import AttentionCase, Shape, attention_case, in_bytes

SHAPES = [Shape(9, 3, 64, 16), Shape(8, 1, 128, 64), Shape(6, 2, 32, 16), Shape(20, 2, 96, 32)]
SPANS = [(1, 1), (16, 16), (17, 17), (37, 1), (37, 5), (300, 50), (513, 1)]
TOLERANCE = 4e-4  # weights of 16 bits


def ways(shape: Shape) -> list[int]:
    """Those that this machine has for such heads; tile registers take 64 dimensions at a time."""
    return [BYTES, BYTE_REGISTERS] if is_usable() and shape.head_dim % 64 == 0 else [BYTES]


def attend(case: AttentionCase, way: int) -> torch.Tensor:
    query, *rest, scale = case.arguments()
    return paged_attention(query, *rest, scale, way=way)  # type: ignore[arg-type]


def check(case: AttentionCase, shape: Shape) -> torch.Tensor:
    """Every way is near the definition, and all give the same bits, which are returned."""
    plain, ordered = in_bytes(case)
    found = [attend(ordered, way) for way in ways(shape)]
    expected = Kernels.reference().paged_attention(*plain.arguments())
    torch.testing.assert_close(found[0], expected, atol=TOLERANCE, rtol=1e-2)
    assert all(torch.equal(found[0], other) for other in found)
    return found[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_agrees_with_the_definition_and_with_the_others(shape: Shape) -> None:
    check(attention_case(SPANS, shape, torch.float32), shape)


def test_codes_of_8_bits_are_near_what_they_stand_for() -> None:
    case = attention_case(SPANS, SHAPES[0], torch.float32)

    found = check(case, SHAPES[0])

    expected = Kernels.reference().paged_attention(*case.arguments())
    assert 0 < (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("length", [*range(1, 34), 255, 257])
def test_what_was_never_written_reaches_no_result(length: int) -> None:
    case = attention_case([(length, 1), (length, min(length, 7))], SHAPES[0], torch.float32)
    _, steps = round_heads(case.values)
    assert steps[case.block_tables[0].long()].isnan().any() == (length % 16 != 0)

    assert check(case, SHAPES[0]).isfinite().all()


@pytest.mark.parametrize("sequence", range(len(SPANS)))
def test_a_sequence_alone_gets_the_very_bits_that_it_gets_in_company(sequence: int) -> None:
    _, case = in_bytes(attention_case(SPANS, SHAPES[0], torch.float32))
    start, end = case.cu_seqlens_q[sequence : sequence + 2].tolist()
    rows = slice(sequence, sequence + 1)
    alone = replace(
        case,
        query=case.query[start:end],
        block_tables=case.block_tables[rows],
        context_lens=case.context_lens[rows],
        cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
        leaders=case.leaders[:1, :0],
    )

    for way in ways(SHAPES[0]):
        assert torch.equal(attend(alone, way), attend(case, way)[start:end])


@pytest.mark.parametrize(("start", "end"), [(0, 1), (15, 16), (16, 21), (250, 300), (256, 257), (299, 300)])
def test_a_token_gets_the_very_bits_that_it_gets_in_a_longer_span(start: int, end: int) -> None:
    _, case = in_bytes(attention_case([(300, 300)], SHAPES[0], torch.float32))
    chunk = replace(
        case,
        query=case.query[start:end].contiguous(),
        context_lens=torch.tensor([end], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
    )

    for way in ways(SHAPES[0]):
        assert torch.equal(attend(chunk, way), attend(case, way)[start:end])


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_what_is_read_together_comes_to_the_very_bits_of_what_is_read_alone(shape: Shape) -> None:
    spans = [(600, 1), (530, 1), (700, 9)] + [(515 + own, 1) for own in range(20)]
    case = attention_case(spans, shape, torch.float32, [(0, 0)] + [(0, 32)] * (len(spans) - 1))
    assert (case.leaders[:, :2] == 0).all()

    together = check(case, shape)

    assert torch.equal(check(replace(case, leaders=case.leaders[:, :0]), shape), together)


@pytest.mark.parametrize("position", [3, 15, 19])
def test_a_key_that_is_not_a_number_shows_in_its_head_alone(position: int) -> None:
    case = attention_case([(20, 1)], Shape(6, 2, 64, 16), torch.float32)
    case.keys[case.block_tables[0, position // 16], 0, 5, position % 16] = torch.nan
    _, ordered = in_bytes(case)

    for way in ways(SHAPES[0]):
        found = attend(ordered, way)[0]
        assert found[:3].isnan().all()
        assert found[3:].isfinite().all()


@pytest.mark.parametrize("position", [3, 15, 19, 299])
@pytest.mark.parametrize("num_queries", [1, 9])
def test_a_value_that_is_not_a_number_shows_in_its_head_alone(position: int, num_queries: int) -> None:
    case = attention_case([(300, num_queries)], Shape(6, 2, 64, 16), torch.float32)
    case.values[case.block_tables[0, position // 16], 0, position % 16, 5] = torch.nan
    _, ordered = in_bytes(case)

    for way in ways(SHAPES[0]):
        found = attend(ordered, way)
        assert found[-1, :3].isnan().all()
        assert found[:, 3:].isfinite().all()
        if position == 299:
            assert found[:-1].isfinite().all()


def test_a_query_of_zeros_is_right_beside_one_that_sees_a_segment_more() -> None:
    case = attention_case([(257, 2)], SHAPES[0], torch.float32)
    case.query[0] = 0
    check(case, SHAPES[0])


def test_a_token_with_nearly_all_of_the_weight_and_no_value_leaves_the_others_theirs() -> None:
    case = attention_case([(256, 1)], SHAPES[0], torch.float32)
    first = case.block_tables[0, 0]
    case.keys[first, :, :, 0] = 8 * case.query[0, 0]  # for the first head it takes all but a thousandth
    case.values[first, :, 0] = 0
    case.query[0, 1:3] = case.query[0, 0]
    plain, ordered = in_bytes(case)
    expected = Kernels.reference().paged_attention(*plain.arguments())[0, 0]

    for way in ways(SHAPES[0]):
        error = (attend(ordered, way)[0, 0] - expected).norm() / expected.norm()
        assert error < 1e-2


def test_queries_and_values_of_nothing_but_zeros_give_means_and_zeros() -> None:
    case = attention_case([(40, 2)], SHAPES[0], torch.float32)
    check(replace(case, query=torch.zeros_like(case.query)), SHAPES[0])

    found = check(replace(case, values=torch.zeros_like(case.values)), SHAPES[0])

    assert (found == 0).all()


def test_great_scores_in_a_late_segment_do_not_overflow() -> None:
    case = attention_case([(513, 1), (513, 20)], SHAPES[0], torch.float32)
    plain, ordered = in_bytes(replace(case, query=case.query * 1000))

    expected = Kernels.reference().paged_attention(*plain.arguments())
    for way in ways(SHAPES[0]):
        # Of scores in the thousands the last of a query's 15 bits is some tenths.
        assert (attend(ordered, way) - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_stored_as_the_definition_rounds_them(shape: Shape, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    heads, size = shape.num_heads + 2 * shape.num_kv_heads, shape.block_size
    qkv = torch.randn(6, heads * shape.head_dim, generator=generator).to(dtype)
    qkv[4] = 0
    angles = torch.randn(6, shape.head_dim // 2, generator=generator)
    slots = torch.tensor([2 * size, 2 * size + 1, 5, size - 1, 3, -1], dtype=torch.int32)
    keys = torch.full((3, shape.num_kv_heads, shape.head_dim + STEP_BYTES, size), -1, dtype=torch.int8)
    values = torch.full((3, shape.num_kv_heads, size, shape.head_dim + STEP_BYTES), -1, dtype=torch.int8)
    plain = keys.clone(), values.clone()

    query = Kernels.cpu().rope_store_kv(qkv.clone(), angles.cos(), angles.sin(), keys, values, slots)

    # The same numbers where the definition takes them unrounded.
    expected = Kernels.reference().rope_store_kv(qkv.float(), angles.cos(), angles.sin(), *plain, slots)
    torch.testing.assert_close(query.float(), expected, atol=1e-5, rtol=1e-2)
    num_codes = shape.head_dim * size
    for pool, other, is_key in ((keys, plain[0], True), (values, plain[1], False)):
        codes = pool.flatten(2)[..., :num_codes]
        if is_key:
            codes = (codes.view(torch.uint8) ^ 128).view(torch.int8)
        group = shape.head_dim // 4 if is_key else size // 4
        codes = codes.unflatten(2, (group, -1, 4)).mT.flatten(2)  # type: ignore[no-untyped-call]
        expected_codes = other.flatten(2)[..., :num_codes]
        steps, other_steps = (each.flatten(2)[..., num_codes:].view(torch.float32) for each in (pool, other))
        torch.testing.assert_close(steps, other_steps, rtol=1e-6, atol=0, equal_nan=True)
        written = ~other_steps.isnan()
        assert int(written.sum()) == 5 * shape.num_kv_heads
        shape_of = (shape.head_dim, size) if is_key else (size, shape.head_dim)
        found, wanted = (each.unflatten(2, shape_of) for each in (codes, expected_codes))  # type: ignore[no-untyped-call]
        if is_key:
            found, wanted = found.mT, wanted.mT
        # The sums before rounding differ in their last bits, so a number between two codes may go either way.
        assert (found[written].int() - wanted[written].int()).abs().max() <= 1
        assert (found[written] != wanted[written]).float().mean() < 0.01
    assert read_heads(plain[0], shape.head_dim, is_transposed=True).shape[3] == shape.head_dim


def test_heads_that_do_not_suit_are_refused_by_name() -> None:
    case = attention_case([(20, 1)], Shape(2, 2, 48, 16), torch.float32)
    _, ordered = in_bytes(case)

    with pytest.raises(ValueError, match="48 dimensions: those kept in 8 bits have a multiple of 32"):
        attend(ordered, BYTES)


def test_a_model_whose_heads_do_not_suit_is_refused_by_name(tmp_path: Path) -> None:
    path = write_checkpoint(random_model("llama", hidden_size=64, head_dim=16), tmp_path)

    with pytest.raises(ValueError, match='kv_dtype is "int8", but heads have 16 dimensions'):
        load_runner(EngineConfig(model=str(path), kv_bytes=1 << 20, kv_dtype="int8"))


def test_a_gpu_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match='kv_dtype is "int8", which only the CPU has'):
        load_runner(EngineConfig(model="any", device="cuda", kv_dtype="int8"))


def test_a_pool_of_8_bits_takes_half_of_the_memory(tmp_path: Path) -> None:
    path = write_checkpoint(random_model("llama", hidden_size=64, head_dim=32), tmp_path)

    full, small = (
        load_runner(EngineConfig(model=str(path), kv_bytes=1 << 20, kv_dtype=kind)).info.num_blocks
        for kind in ("full", "int8")
    )

    assert small == pytest.approx(full * 64 / (32 + STEP_BYTES), abs=1)


@pytest.mark.parametrize(
    ("products", "head_dim", "kind"),
    [("int8", 32, torch.int8), ("int8", 16, torch.bfloat16), ("full", 32, torch.bfloat16)],
)
def test_auto_keeps_8_bits_where_weights_have_them_and_heads_suit(
    tmp_path: Path, products: Literal["int8", "full"], head_dim: int, kind: torch.dtype
) -> None:
    path = write_checkpoint(random_model("llama", hidden_size=64, head_dim=head_dim), tmp_path)

    pool = load_runner(EngineConfig(model=str(path), kv_bytes=1 << 20, products=products)).pool

    assert pool.keys.dtype == kind


def test_auto_asks_the_heads_of_a_draft_too(tmp_path: Path) -> None:
    path, draft = (
        write_checkpoint(random_model("llama", hidden_size=64, head_dim=head_dim), tmp_path / str(head_dim))
        for head_dim in (32, 16)
    )
    config = EngineConfig(
        model=str(path), kv_bytes=1 << 20, products="int8", speculation="draft", draft_model=str(draft)
    )

    assert load_runner(config).pool.keys.dtype == torch.bfloat16
