"""What work has to move and to compute at least: formulas, nothing measured.

Bytes are those that must come from memory or go there once; what a kernel reads twice, or keeps between two
launches, is its own affair. A multiplication and its addition are two operations; exponentials are none.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

from engine.models.config import ModelConfig
from scripts.gpu_check.shapes import Load

__all__ = [
    "Heads",
    "Work",
    "add_rms_norm",
    "adjust_logits",
    "attention",
    "forward",
    "merge_partitions",
    "moved",
    "partition_attention",
    "rms_norm",
    "rope_store",
    "sampling",
    "silu_and_mul",
]

_FLOAT, _INDEX = 4, 4  # bytes


class Work(NamedTuple):
    """Bytes to move and operations to carry out."""

    num_bytes: int
    operations: int = 0


class Heads(NamedTuple):
    """Of a model's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, model: ModelConfig) -> Self:
        """A model's."""
        return cls(model.num_heads, model.num_kv_heads, model.head_dim)

    @property
    def kv_size(self) -> int:
        """Numbers of a token's key and value."""
        return 2 * self.num_kv_heads * self.head_dim


def rms_norm(num_rows: int, size: int, *, itemsize: int) -> Work:
    """Rows of float32 to rows as the weights."""
    return Work(num_rows * size * (_FLOAT + itemsize) + size * itemsize)


def add_rms_norm(num_rows: int, size: int, *, itemsize: int) -> Work:
    """A residual of float32 is read and written beside rows in and rows out."""
    return Work(num_rows * size * 2 * (_FLOAT + itemsize) + size * itemsize)


def silu_and_mul(num_rows: int, size: int, *, itemsize: int) -> Work:
    """Gate and up in, one row out."""
    return Work(3 * num_rows * size * itemsize)


def rope_store(
    num_tokens: int,
    num_stored: int,
    heads: Heads,
    *,
    itemsize: int,
    pool_itemsize: int,
    has_norms: bool = False,
) -> Work:
    """Queries in and out with angles and slots; keys and values to their slots, where a token has one."""
    queries = num_tokens * 2 * heads.num_heads * heads.head_dim * itemsize
    beside = num_tokens * (heads.head_dim * _FLOAT + _INDEX)
    stored = num_stored * heads.kv_size * (itemsize + pool_itemsize)
    return Work(queries + beside + stored + (2 * heads.head_dim * itemsize if has_norms else 0))


def attention(
    load: Load, heads: Heads, *, itemsize: int, pool_itemsize: int, window: int | None = None
) -> Work:
    """Queries in, as much out, and every different key and value that is seen once."""
    first_seen = 0 if window is None else max(load.context - load.num_new + 1 - window, 0)
    num_common = max(load.num_shared - first_seen, 0)
    num_read = num_common + load.num_sequences * (load.context - max(first_seen, load.num_shared))
    num_tokens = load.num_sequences * load.num_new
    query_bytes = num_tokens * heads.num_heads * heads.head_dim * itemsize
    num_bytes = num_read * heads.kv_size * pool_itemsize + 2 * query_bytes
    return Work(
        num_bytes, 4 * heads.num_heads * heads.head_dim * load.num_sequences * _num_seen(load, window)
    )


def partition_attention(
    load: Load, heads: Heads, *, itemsize: int, pool_itemsize: int, partition: int
) -> Work:
    """The same, but what comes out is each partition's sums."""
    whole = attention(load, heads, itemsize=itemsize, pool_itemsize=pool_itemsize)
    out_bytes = load.num_sequences * load.num_new * heads.num_heads * heads.head_dim * itemsize
    return Work(whole.num_bytes - out_bytes + _sum_bytes(load, heads, partition), whole.operations)


def merge_partitions(load: Load, heads: Heads, *, itemsize: int, partition: int) -> Work:
    """Sums in, attention out."""
    out_bytes = load.num_sequences * load.num_new * heads.num_heads * heads.head_dim * itemsize
    return Work(_sum_bytes(load, heads, partition) + out_bytes)


def moved(num_bytes: int) -> Work:
    """What is copied is read and written."""
    return Work(2 * num_bytes)


def sampling(num_rows: int, vocab_size: int, *, num_passes: int = 1) -> Work:
    """Logits or weights of float32, once read; with two passes written as well."""
    return Work(num_passes * num_rows * vocab_size * _FLOAT)


def adjust_logits(num_edits: int) -> Work:
    """A place and three amounts in, a logit read and written."""
    return Work(num_edits * (2 * _INDEX + 3 * _FLOAT + 2 * _FLOAT))


def forward(model: ModelConfig, spans: Iterable[tuple[int, int]], *, itemsize: int, num_draws: int) -> Work:
    """A step of spans [start, end): weights once, each sequence's keys and values once. The embedding is
    looked up, so it is not read.
    """
    spans, heads = list(spans), Heads.of(model)
    queries = model.num_heads * model.head_dim
    layer = model.hidden_size * (2 * queries + heads.kv_size + 3 * model.intermediate_size)
    layers, head = model.num_layers * layer, model.vocab_size * model.hidden_size
    num_tokens = sum(end - start for start, end in spans)
    num_held = sum(end for _, end in spans)
    num_seen = sum((end * (end + 1) - start * (start + 1)) // 2 for start, end in spans)
    return Work(
        (layers + head + num_held * model.num_layers * heads.kv_size) * itemsize,
        2 * layers * num_tokens + 2 * head * num_draws + 4 * model.num_layers * queries * num_seen,
    )


def _num_seen(load: Load, window: int | None) -> int:
    """Keys that the new tokens of one sequence see, all together."""
    limit = load.context if window is None else window
    positions = range(load.context - load.num_new, load.context)
    return sum(min(position + 1, limit) for position in positions)


def _sum_bytes(load: Load, heads: Heads, partition: int) -> int:
    """A maximum, a sum and an unnormalized output for each token, partition and head."""
    num_sums = load.num_sequences * load.num_new * -(-load.context // partition) * heads.num_heads
    return num_sums * (heads.head_dim + 2) * _FLOAT
