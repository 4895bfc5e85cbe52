"""All layers as one program, against the same layers operation by operation over the same products."""

from dataclasses import replace

import numba
import pytest
import torch

from kernels import Kernels
from kernels.cpu.amx import is_usable
from kernels.cpu.arrays import as_array
from kernels.cpu.attention_ways import way_for
from kernels.cpu.fused_stack import FusedStack
from kernels.cpu.layer_program import RUN
from kernels.stack import ComposedStack
from tests.kernels.stacks import Model, Run, Text, bits, texts_of

DTYPES = [torch.float32, torch.bfloat16]
WAYS = [False, True] if is_usable() else [False]  # with tile registers; a machine may have vectors only


def both(model: Model, dtype: torch.dtype) -> tuple[Run, Run]:
    return (
        Run(model, dtype, model.fused(dtype)),
        Run(model, dtype, model.composed(dtype)),
    )


MODELS = [
    Model(),
    Model(has_norms=True),
    Model(has_biases=True, num_heads=3, num_kv_heads=1),
    Model(has_norms=True, has_biases=True, hidden_size=96, num_heads=2, intermediate_size=160),
]


@pytest.mark.parametrize("model", MODELS, ids=["plain", "head norms", "biases", "all"])
def test_in_float32_the_program_gives_the_bits_of_the_operations(model: Model) -> None:
    fused, composed = both(model, torch.float32)
    texts = texts_of(model, [1, 16, 37, 300], [1, 5, 17, 130])

    found, expected = fused.whole(texts), composed.whole(texts)

    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
    assert torch.equal(bits(fused.keys), bits(composed.keys))
    assert torch.equal(bits(fused.values), bits(composed.values))
    assert all(each.isfinite().all() for each in found)


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_over_blocks_of_8_bits_the_program_gives_what_the_operations_give(
    dtype: torch.dtype, head_dim: int
) -> None:
    model = Model(has_norms=True, has_biases=True, head_dim=head_dim)
    texts = texts_of(model, [1, 16, 37, 300], [1, 5, 17, 130])
    fused = Run(model, dtype, model.fused(dtype), has_bytes=True)
    composed = Run(model, dtype, model.composed(dtype), has_bytes=True)

    found, expected = torch.cat(fused.whole(texts)), torch.cat(composed.whole(texts))

    assert found.isfinite().all()
    if dtype == torch.float32:
        assert torch.equal(found, expected)
        assert torch.equal(fused.keys, composed.keys)
        assert torch.equal(fused.values, composed.values)
    assert (found.float() - expected.float()).norm() < 0.03 * expected.float().norm()


@pytest.mark.parametrize("model", MODELS, ids=["plain", "head norms", "biases", "all"])
def test_in_bfloat16_the_program_is_within_rounding_of_the_operations(model: Model) -> None:
    fused, composed = both(model, torch.bfloat16)
    texts = texts_of(model, [1, 16, 37, 300], [1, 5, 17, 130])

    found, expected = torch.cat(fused.whole(texts)), torch.cat(composed.whole(texts))

    assert (found.float() - expected.float()).norm() < 0.03 * expected.float().norm()
    for pool, other in ((fused.keys, composed.keys), (fused.values, composed.values)):
        assert torch.equal(pool.isnan(), other.isnan())
        assert (pool.nan_to_num() - other.nan_to_num()).norm() < 0.03 * other.nan_to_num().norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_by_vectors_and_by_registers_agree_bit_for_bit(dtype: torch.dtype) -> None:
    model = MODELS[-1]
    texts = texts_of(model, [1, 16, 37, 300], [1, 5, 17, 130])
    runs = [Run(model, dtype, model.fused(dtype, has_registers=way)) for way in WAYS]

    found = [torch.cat(run.whole(texts)) for run in runs]

    assert all(torch.equal(each, found[0]) for each in found)
    for run in runs:
        assert torch.equal(bits(run.keys), bits(runs[0].keys))
        assert torch.equal(bits(run.values), bits(runs[0].values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_comes_to_the_same_bits_in_any_company_and_chunks(dtype: torch.dtype) -> None:
    model = Model(has_norms=True, has_biases=True)
    together = Run(model, dtype, model.fused(dtype))
    texts = texts_of(model, [1, 300, 37, 90], [1, 19, 64, 90])
    found = together.whole(texts)

    for text, states, chunk in zip(texts, found, [1, 300, 1, 33], strict=True):
        alone = Run(model, dtype, model.fused(dtype))
        assert torch.equal(alone.whole([replace(text, chunk=chunk)])[0], states)
        assert torch.equal(bits(alone.keys[:, text.blocks]), bits(together.keys[:, text.blocks]))
        assert torch.equal(bits(alone.values[:, text.blocks]), bits(together.values[:, text.blocks]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_texts_that_share_a_partition_come_to_what_they_do_apart(dtype: torch.dtype) -> None:
    model = Model()
    first, *others = texts_of(model, [300, 60, 30], [300, 1, 7])
    front, shared = first.embedded[:256], first.blocks[:16]
    family = [
        Text(torch.cat([front, text.embedded]), shared + text.blocks, text.chunk, num_cached=256)
        for text in others
    ]
    together = Run(model, dtype, model.fused(dtype))
    together.whole([first])

    found = together.whole([replace(first, num_cached=256), *family])

    for text, states in zip(family, found[1:], strict=True):
        alone = Run(model, dtype, model.fused(dtype)).whole([replace(text, chunk=300, num_cached=0)])[0]
        assert torch.equal(alone[256:], states)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_has_no_slot_is_computed_and_not_stored(dtype: torch.dtype) -> None:
    model = Model()
    text, padding = texts_of(model, [20, 3], [20, 3])
    stored, unstored = (Run(model, dtype, model.fused(dtype)) for _ in range(2))

    expected = stored.step([(text, 0, 20)])
    found = unstored.step([(text, 0, 20), (padding, 0, 3)], num_unstored=3)

    assert torch.equal(found[0], expected[0])
    assert len(found[1]) == 3
    assert torch.equal(bits(unstored.keys), bits(stored.keys))
    assert torch.equal(bits(unstored.values), bits(stored.values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_may_be_longer_or_shorter_than_those_before(dtype: torch.dtype) -> None:
    model = Model()
    used = Run(model, dtype, model.fused(dtype))
    for text in texts_of(model, [3, 40, 1, 130, 16, 17], [300] * 6):
        found = used.step([(text, 0, len(text.embedded))])

        fresh = Run(model, dtype, model.fused(dtype))
        assert torch.equal(found[0], fresh.step([(text, 0, len(text.embedded))])[0])


def test_workers_that_are_busy_at_once_do_not_meet() -> None:
    model = Model(hidden_size=256, num_heads=8, num_kv_heads=4, intermediate_size=512)
    fused, composed = both(model, torch.float32)
    texts = texts_of(model, [500], [250])

    expected = composed.whole(texts)[0]

    assert all(torch.equal(fused.whole(texts)[0], expected) for _ in range(5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_way_of_attention_is_compiled_but_the_one_that_is_taken(dtype: torch.dtype) -> None:
    model = Model()
    [text] = texts_of(model, [20], [20])
    run = Run(model, dtype, model.fused(dtype))
    run.whole([text])

    number = numba.typeof(as_array(run.keys)).dtype
    compiled = [
        way
        for way, program in enumerate(RUN)
        for _, _, pools, *_ in program.signatures
        if pools[0].dtype == number
    ]
    assert set(compiled) == {way_for(dtype, model.head_dim)}


def test_two_stacks_in_one_process_know_nothing_of_each_other() -> None:
    models = [Model(), Model(has_norms=True, hidden_size=96)]
    alone = []
    for model in models:
        [text] = texts_of(model, [50], [9])
        alone.append(Run(model, torch.float32, model.fused(torch.float32)).whole([text])[0])
    runs = [Run(model, torch.float32, model.fused(torch.float32)) for model in models]
    texts = [texts_of(model, [50], [9])[0] for model in models]
    found: list[list[torch.Tensor]] = [[], []]

    for start in range(0, 50, 9):
        for index, run in enumerate(runs):
            found[index] += run.step([(texts[index], start, min(start + 9, 50))])

    assert all(torch.equal(torch.cat(each), expected) for each, expected in zip(found, alone, strict=True))


def test_a_number_that_is_not_finite_spoils_its_own_text_only() -> None:
    model = Model()
    plain, strange = texts_of(model, [20, 20], [20, 20])
    expected = Run(model, torch.float32, model.fused(torch.float32)).whole([plain])[0]
    strange.embedded[5, 7] = torch.inf

    found = Run(model, torch.float32, model.fused(torch.float32)).whole([plain, strange])

    assert torch.equal(found[0], expected)
    assert found[1][5:].isnan().all()


def test_it_says_what_its_time_went_to() -> None:
    model = Model()
    stack = model.fused(torch.float32)
    Run(model, torch.float32, stack).whole(texts_of(model, [40], [40]))

    assert set(stack.cycles) == {"products", "attention", "rows", "waiting"}
    assert all(stack.cycles[kind] > 0 for kind in ("products", "attention", "rows"))


@pytest.mark.parametrize(
    ("hidden_size", "head_dim", "fits"), [(64, 32, True), (64, 24, False), (80, 32, False), (96, 16, True)]
)
def test_layers_that_do_not_fill_vectors_are_computed_by_operations(
    hidden_size: int, head_dim: int, fits: bool
) -> None:
    model = Model(hidden_size=hidden_size, head_dim=head_dim)
    kernels = Kernels.cpu("int8")

    stack = kernels.make_stack(
        kernels, model.layers(torch.float32), model.final_norm(torch.float32), model.shape
    )

    assert isinstance(stack, FusedStack if fits else ComposedStack)
    [text] = texts_of(model, [20], [20])
    found = Run(model, torch.float32, stack).whole([text])[0]
    expected = Run(model, torch.float32, model.composed(torch.float32)).whole([text])[0]
    assert torch.equal(found, expected)
