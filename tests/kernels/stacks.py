"""Small decoders' layers with random weights, and texts to run through them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from kernels import Kernels
from kernels.byte_cache import STEP_BYTES
from kernels.cpu.fused_stack import FusedStack
from kernels.partitions import find_leaders
from kernels.stack import ComposedStack, LayerWeights, Stack, StackShape, StepTensors

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

    def fused(self, dtype: torch.dtype, *, has_registers: bool | None = None) -> FusedStack:
        norm = self.final_norm(dtype)
        return FusedStack(self.layers(dtype), norm, self.shape, has_registers=has_registers)

    def composed(self, dtype: torch.dtype) -> ComposedStack:
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
    has_bytes: bool = False  # keys and values of 8 bits
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.model.shape.num_layers, NUM_BLOCKS, self.model.num_kv_heads)
        dim = self.model.head_dim
        if self.has_bytes:
            size = dim + STEP_BYTES
            # Steps whose bits are all ones are NaN.
            self.keys = torch.full((*shape, size, BLOCK), -1, dtype=torch.int8)
            self.values = torch.full((*shape, BLOCK, size), -1, dtype=torch.int8)
            return
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
