"""What is looked at: sizes of a Llama of 8 billion weights, and tiny ones that any machine gets through."""

from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig

__all__ = ["FULL", "SMALL", "Bounds", "KernelShapes", "Load", "Shapes", "StepShapes"]


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences of one length whose last tokens one step computes."""

    num_sequences: int
    context: int  # tokens of each sequence
    num_new: int = 1  # of which the last ones are queries
    num_shared: int = 0  # of which all sequences hold the first ones together; whole blocks

    def __str__(self) -> str:
        shared = f", {self.num_shared:,} shared" if self.num_shared else ""
        new = "" if self.num_new == 1 else f", {self.num_new:,} new"
        return f"{self.num_sequences} x {self.context:,}{new}{shared}"

    def num_blocks(self, block_size: int) -> int:
        """Blocks that differ."""
        num_common = self.num_shared // block_size
        return num_common + self.num_sequences * (-(-self.context // block_size) - num_common)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a kernel's results may be from its reference's, as a whole and relative to them."""

    rounded: float  # computed in float32 and rounded to bfloat16 once, both of them
    eight_bits: float  # the same, rounded to 8 bits
    attention: float  # weights of tokens are rounded to bfloat16 as well, and the reference is float32


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShapes:
    """Of the kernels, one by one, in bfloat16. Working sets do not fit a GPU's caches."""

    bounds: Bounds

    num_tokens: int  # whose rows are normed, activated, rotated and stored
    num_wide_tokens: int  # of rows too wide for one program's registers
    wide_size: int
    decodes: tuple[Load, ...]
    prefill: Load
    window: int
    cap: float  # small enough to matter to scores of random numbers
    num_blocks: int  # of a pool
    num_moved: int  # of its blocks, that are copied or moved
    num_rows: int  # of logits
    vocab_size: int
    num_edits: int  # of logits


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """Of whole steps."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]  # each with each batch
    prompts: tuple[int, ...]  # tokens
    asked: int  # tokens of the prompt that is asked more than once
    num_answered: int
    num_moved: int  # blocks
    num_checked_layers: int  # of the model that is held against plain torch
    checked: int  # tokens of its prompt

    @property
    def decodes(self) -> list[Load]:
        """Every batch with every context."""
        return [Load(batch, context) for context in self.contexts for batch in self.batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """All of one run."""

    model: ModelConfig
    step_dtype: torch.dtype  # of weights, keys and values in whole steps
    block_size: int
    kernels: KernelShapes
    steps: StepShapes


FULL = Shapes(
    model=ModelConfig(
        family="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        context_length=131072,
        rms_eps=1e-5,
        rope_theta=500000.0,
    ),
    step_dtype=torch.bfloat16,
    block_size=16,
    kernels=KernelShapes(
        bounds=Bounds(rounded=1e-3, eight_bits=1e-3, attention=5e-3),
        num_tokens=8192,
        num_wide_tokens=2048,
        wide_size=18432,
        decodes=(Load(32, 4096), Load(8, 32768), Load(32, 4224, num_shared=4096)),
        prefill=Load(1, 8192, num_new=8192),
        window=1024,
        cap=2.0,
        num_blocks=1024,
        num_moved=256,
        num_rows=128,
        vocab_size=128256,
        num_edits=65536,
    ),
    steps=StepShapes(
        batches=(1, 8, 32, 128),
        contexts=(1024, 4096, 16384),
        prompts=(512, 2048, 8192),
        asked=8192,
        num_answered=16,
        num_moved=512,
        num_checked_layers=4,
        checked=300,
    ),
)

SMALL = Shapes(
    model=ModelConfig(
        family="llama",
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context_length=1024,
        rms_eps=1e-5,
        rope_theta=10000.0,
    ),
    step_dtype=torch.float32,
    block_size=16,
    kernels=KernelShapes(
        # Triton's interpreter rounds in ways of its own: most of what it makes shorter it cuts off.
        bounds=Bounds(rounded=7e-3, eight_bits=8e-2, attention=1e-2),
        num_tokens=5,
        num_wide_tokens=2,
        wide_size=16400,
        decodes=(Load(3, 300), Load(1, 520), Load(3, 275, num_shared=256)),
        prefill=Load(1, 100, num_new=80),
        window=32,
        cap=2.0,
        num_blocks=24,
        num_moved=5,
        num_rows=6,
        vocab_size=8200,
        num_edits=300,
    ),
    steps=StepShapes(
        batches=(1, 3),
        contexts=(20, 270),
        prompts=(9, 24),
        asked=38,
        num_answered=4,
        num_moved=3,
        num_checked_layers=2,
        checked=24,
    ),
)
