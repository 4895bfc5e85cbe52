"""All layers as one program, against the same layers operation by operation over the same products."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from kernels import Kernels
from kernels.cpu.fused_stack import FusedStack
from kernels.partitions import find_leaders
from kernels.stack import ComposedStack, LayerWeights, Stack, StackShape, StepTensors

DTYPES = [torch.float32, torch.bfloat16]
BLOCK = 16
NUM_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a decoder's layers, and which parts they have beside the matrices."""

    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 80  # not of whole tiles
    has_norms: bool = False
    has_biases: bool = False

    @property
    def shape(self) -> StackShape:
        return StackShape(3, self.num_heads, self.num_kv_heads, self.head_dim, 1e-5)

    def layers(self, dtype: torch.dtype) -> Iterator[LayerWeights]:
        """The same random weights at every call."""
        generator = torch.Generator().manual_seed(4)

        def numbers(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator)

        def matrix(num_outputs: int, num_inputs: int) -> torch.Tensor:
            return (numbers(num_outputs, num_inputs) / num_inputs**0.5).to(dtype)

        def norm(size: int) -> torch.Tensor:
            return (1 + 0.3 * numbers(size)).to(dtype)

        def bias(size: int) -> torch.Tensor | None:
            return numbers(size).to(dtype) if self.has_biases else None

        heads = self.num_heads * self.head_dim
        qkv = heads + 2 * self.num_kv_heads * self.head_dim
        for _ in range(self.shape.num_layers):
            yield LayerWeights(
                input_norm=norm(self.hidden_size),
                qkv=matrix(qkv, self.hidden_size),
                qkv_bias=bias(qkv),
                query_norm=norm(self.head_dim) if self.has_norms else None,
                key_norm=norm(self.head_dim) if self.has_norms else None,
                output=matrix(self.hidden_size, heads),
                output_bias=bias(self.hidden_size),
                mlp_norm=norm(self.hidden_size),
                gate_up=matrix(2 * self.intermediate_size, self.hidden_size),
                gate_up_bias=bias(2 * self.intermediate_size),
                down=matrix(self.hidden_size, self.intermediate_size),
                down_bias=bias(self.hidden_size),
            )

    def stack(self, dtype: torch.dtype, *, is_fused: bool = True) -> Stack:
        if is_fused:
            return FusedStack(self.layers(dtype), self.final_norm(dtype), self.shape)
        return ComposedStack(Kernels.cpu("int8"), self.layers(dtype), self.final_norm(dtype), self.shape)

    def final_norm(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.linspace(0.5, 2, self.hidden_size).to(dtype)


@dataclass(frozen=True, slots=True)
class Text:
    """A sequence: its embedded tokens, where they stand, and how many go into one step."""

    embedded: torch.Tensor  # [num_tokens, hidden_size] float32
    blocks: list[int]
    chunk: int
    num_cached: int = 0  # tokens at the front that another text with the same blocks computes


@dataclass(slots=True)
class Run:
    """Steps of one stack over a pool that holds NaN wherever nothing was written."""

    model: Model
    dtype: torch.dtype
    stack: Stack
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.model.shape.num_layers, NUM_BLOCKS, self.model.num_kv_heads)
        dim = self.model.head_dim
        self.keys = torch.full((*shape, dim, BLOCK), torch.nan).to(self.dtype)
        self.values = torch.full((*shape, BLOCK, dim), torch.nan).to(self.dtype)

    def step(self, spans: list[tuple[Text, int, int]], *, num_unstored: int = 0) -> list[torch.Tensor]:
        """Spans are a text, its first token and the one after the last. Returns their hidden states."""
        rows = [text.embedded[start:end] for text, start, end in spans]
        positions = torch.cat([torch.arange(start, end) for _, start, end in spans])
        tables = torch.zeros(len(spans), max(len(text.blocks) for text, _, _ in spans), dtype=torch.int32)
        slots = []
        for row, (text, start, end) in enumerate(spans):
            tables[row, : len(text.blocks)] = torch.tensor(text.blocks)
            slots += [text.blocks[place // BLOCK] * BLOCK + place % BLOCK for place in range(start, end)]
        mapping = torch.tensor(slots, dtype=torch.int32)
        mapping[len(slots) - num_unstored :] = -1
        ends = [end for _, _, end in spans]
        step = StepTensors(
            slot_mapping=mapping,
            block_tables=tables,
            context_lens=torch.tensor(ends, dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0] + [len(each) for each in rows]).cumsum(0).int(),
            leaders=torch.from_numpy(find_leaders(tables.numpy(), max(ends), BLOCK)),
        )
        angles = positions[:, None] * 0.7 ** torch.arange(self.model.head_dim // 2)
        found = self.stack(torch.cat(rows), (angles.cos(), angles.sin()), step, self.keys, self.values)
        return list(found.split([len(each) for each in rows]))

    def whole(self, texts: list[Text]) -> list[torch.Tensor]:
        """The hidden states of all texts' own tokens, all texts together, each in its chunks."""
        done = [text.num_cached for text in texts]
        states: list[list[torch.Tensor]] = [[] for _ in texts]
        while active := [index for index, text in enumerate(texts) if done[index] < len(text.embedded)]:
            spans = []
            for index in active:
                end = min(done[index] + texts[index].chunk, len(texts[index].embedded))
                spans.append((texts[index], done[index], end))
            for index, (_, _, end), found in zip(active, spans, self.step(spans), strict=True):
                states[index].append(found)
                done[index] = end
        return [torch.cat(each) for each in states]


def texts_of(model: Model, lengths: list[int], chunks: list[int]) -> list[Text]:
    """Random texts over shuffled blocks."""
    generator = torch.Generator().manual_seed(9)
    blocks = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    texts = []
    for length, chunk in zip(lengths, chunks, strict=True):
        own = [blocks.pop() for _ in range(-(-length // BLOCK))]
        texts.append(Text(torch.randn(length, model.hidden_size, generator=generator), own, chunk))
    return texts


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """What two tensors have in common if NaN stands in the same places too."""
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def both(model: Model, dtype: torch.dtype) -> tuple[Run, Run]:
    return (
        Run(model, dtype, model.stack(dtype)),
        Run(model, dtype, model.stack(dtype, is_fused=False)),
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
def test_a_row_comes_to_the_same_bits_in_any_company_and_chunks(dtype: torch.dtype) -> None:
    model = Model(has_norms=True, has_biases=True)
    together = Run(model, dtype, model.stack(dtype))
    texts = texts_of(model, [1, 300, 37, 90], [1, 19, 64, 90])
    found = together.whole(texts)

    for text, states, chunk in zip(texts, found, [1, 300, 1, 33], strict=True):
        alone = Run(model, dtype, model.stack(dtype))
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
    together = Run(model, dtype, model.stack(dtype))
    together.whole([first])

    found = together.whole([replace(first, num_cached=256), *family])

    for text, states in zip(family, found[1:], strict=True):
        alone = Run(model, dtype, model.stack(dtype)).whole([replace(text, chunk=300, num_cached=0)])[0]
        assert torch.equal(alone[256:], states)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_has_no_slot_is_computed_and_not_stored(dtype: torch.dtype) -> None:
    model = Model()
    text, padding = texts_of(model, [20, 3], [20, 3])
    stored, unstored = (Run(model, dtype, model.stack(dtype)) for _ in range(2))

    expected = stored.step([(text, 0, 20)])
    found = unstored.step([(text, 0, 20), (padding, 0, 3)], num_unstored=3)

    assert torch.equal(found[0], expected[0])
    assert len(found[1]) == 3
    assert torch.equal(bits(unstored.keys), bits(stored.keys))
    assert torch.equal(bits(unstored.values), bits(stored.values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_may_be_longer_or_shorter_than_those_before(dtype: torch.dtype) -> None:
    model = Model()
    used = Run(model, dtype, model.stack(dtype))
    for text in texts_of(model, [3, 40, 1, 130, 16, 17], [300] * 6):
        found = used.step([(text, 0, len(text.embedded))])

        fresh = Run(model, dtype, model.stack(dtype))
        assert torch.equal(found[0], fresh.step([(text, 0, len(text.embedded))])[0])


def test_two_stacks_in_one_process_know_nothing_of_each_other() -> None:
    models = [Model(), Model(has_norms=True, hidden_size=96)]
    alone = []
    for model in models:
        [text] = texts_of(model, [50], [9])
        alone.append(Run(model, torch.float32, model.stack(torch.float32)).whole([text])[0])
    runs = [Run(model, torch.float32, model.stack(torch.float32)) for model in models]
    texts = [texts_of(model, [50], [9])[0] for model in models]
    found: list[list[torch.Tensor]] = [[], []]

    for start in range(0, 50, 9):
        for index, run in enumerate(runs):
            found[index] += run.step([(texts[index], start, min(start + 9, 50))])

    assert all(torch.equal(torch.cat(each), expected) for each, expected in zip(found, alone, strict=True))


def test_a_number_that_is_not_finite_spoils_its_own_text_only() -> None:
    model = Model()
    plain, strange = texts_of(model, [20, 20], [20, 20])
    expected = Run(model, torch.float32, model.stack(torch.float32)).whole([plain])[0]
    strange.embedded[5, 7] = torch.inf

    found = Run(model, torch.float32, model.stack(torch.float32)).whole([plain, strange])

    assert torch.equal(found[0], expected)
    assert found[1][5:].isnan().all()


def test_it_says_what_its_time_went_to() -> None:
    model = Model()
    stack = model.stack(torch.float32)
    assert isinstance(stack, FusedStack)
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
    expected = Run(model, torch.float32, model.stack(torch.float32, is_fused=False)).whole([text])[0]
    assert torch.equal(found, expected)
