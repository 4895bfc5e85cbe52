"""What an engine turned out to be, once its model is loaded and its memory taken."""

from dataclasses import dataclass

__all__ = ["EngineInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Known before the first step, and the same until the engine ends."""

    context_length: int  # tokens of prompt and answer together
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    device: str
    dtype: str

    @property
    def max_request_tokens(self) -> int:
        """The longest prompt and answer together: the context or the whole pool, whichever ends first."""
        return min(self.context_length, self.num_blocks * self.block_size)
