"""What a step has to read and to compute at least, by kind, and how long a machine needs for that.

Weights are read once a step, keys and values of a block once whoever shares it; a floor is the longer of
reading and computing. Both are counted, not measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peaks import Peaks
from engine.models.config import ModelConfig
from engine.step import Step

__all__ = ["Costs", "Floor", "Work", "bound_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read and operations to carry out."""

    num_bytes: float
    operations: float

    def floor(self, peaks: Peaks) -> "Floor":
        """Products are held against the peak in bfloat16, whatever they are made of."""
        return Floor(self.num_bytes / peaks.read, self.operations / peaks.bfloat16)


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds that work takes."""

    reading: float
    computing: float

    @property
    def seconds(self) -> float:
        """Of both beside each other."""
        return max(self.reading, self.computing)


@dataclass(frozen=True, slots=True)
class Costs:
    """One model's, with weights of so many bytes and a pool of blocks of so many slots."""

    config: ModelConfig
    bytes_per_weight: int
    block_size: int
    bytes_per_block: int  # of keys and values, over all layers

    def of(self, step: Step) -> dict[str, Work]:
        """The work of a step, by kind. Its sequences must still hold their blocks."""
        return self.count(
            [(span.start, span.end) for span in step.spans],
            num_blocks=len(_blocks(step, self.block_size)),
            # Once a step is over its sequences have grown, and their spans end before them.
            num_draws=sum(span.end >= span.sequence.num_prompt_tokens for span in step.spans),
        )

    def count(self, spans: Iterable[tuple[int, int]], *, num_blocks: int, num_draws: int) -> dict[str, Work]:
        """The work of spans [start, end) of sequences that hold so many different blocks."""
        config = self.config
        spans = list(spans)
        num_tokens = sum(end - start for start, end in spans)
        # A token sees those before it and itself.
        num_seen = sum((end * (end + 1) - start * (start + 1)) // 2 for start, end in spans)
        layers, head = self._num_weights
        seen_operations = 4 * config.num_layers * config.num_heads * config.head_dim
        return {
            "products": Work(layers * self.bytes_per_weight, 2 * layers * num_tokens),
            "attention": Work(num_blocks * self.bytes_per_block, seen_operations * num_seen),
            "head": Work(head * self.bytes_per_weight, 2 * head * num_draws),
        }

    @property
    def _num_weights(self) -> tuple[int, int]:
        """Of all layers' matrices, and of the head."""
        config = self.config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = config.hidden_size * (2 * queries + 2 * keys)
        feed_forward = 3 * config.hidden_size * config.intermediate_size
        head = config.vocab_size * config.hidden_size
        return config.num_layers * (attention + feed_forward), head


def bound_of(work: dict[str, Work], peaks: Peaks) -> str:
    """What takes longest of all that must be read and computed, and how long, in words."""
    floors = {kind: each.floor(peaks) for kind, each in work.items()}
    names = {"products": "the weights", "attention": "keys and values", "head": "the head"}
    parts = [
        (seconds, f"{verb} {names[kind]}")
        for kind, floor in floors.items()
        for verb, seconds in (("reading", floor.reading), ("computing with", floor.computing))
    ]
    seconds, name = max(parts)
    total = sum(floor.seconds for floor in floors.values())
    return f"bound by {name} ({seconds * 1000:.2f} ms at the machine's peak, {total * 1000:.2f} in all)"


def _blocks(step: Step, block_size: int) -> set[int]:
    """The different blocks that hold what the step's spans see."""
    return {block for span in step.spans for block in span.sequence.block_table[: -(-span.end // block_size)]}
