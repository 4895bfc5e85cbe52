"""The engine without a model: its own scheduler and cache, over a runner that draws tokens by a hash.

What is measured so is exact: blocks, tokens and steps do not depend on what tokens say.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from engine.core import EngineCore
from engine.messages import Accepted, EngineInfo, Submit
from engine.scheduler import Limits
from engine.sequence import SamplingParams
from engine.step import Draw, Span, SpanResult, Step, StepResult

__all__ = ["HashRunner", "ask", "make_core", "prompt_of"]

VOCABULARY = 50_000


class HashRunner:
    """Draws a token that depends on request, choice and place."""

    def __init__(self, num_blocks: int, block_size: int, context_length: int) -> None:
        self.info = EngineInfo(
            context_length=context_length,
            vocab_size=VOCABULARY,
            block_size=block_size,
            num_blocks=num_blocks,
            kv_bytes=num_blocks * block_size,
            device="cpu",
            dtype="float32",
        )

    def run(self, step: Step) -> StepResult:
        """Computes nothing."""
        return StepResult(tuple(SpanResult(_draws(span)) for span in step.spans))


def make_core(num_slots: int, block_size: int, *, max_sequences: int, context_length: int) -> EngineCore:
    """An engine with a pool of so many token slots, whose steps hold whole prompts."""
    runner = HashRunner(num_slots // block_size, block_size, context_length)
    limits = Limits(
        max_batch_tokens=max(2048, max_sequences), max_sequences=max_sequences, max_waiting=1 << 30
    )
    return EngineCore(runner, limits)


def prompt_of(number: int, num_tokens: int) -> bytes:
    """A prompt that no other number shares a token with at its first place, packed."""
    ids = array("i", [number % VOCABULARY])
    seed = number
    while len(ids) < num_tokens:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        ids.append((seed >> 33) % VOCABULARY)
    return ids.tobytes()


def ask(core: EngineCore, requests: Iterable[tuple[bytes, int]], *, num_choices: int = 1) -> None:
    """Queue prompts with the lengths of their answers. Raises ValueError when one can never run."""
    for number, (prompt, num_answer) in enumerate(requests):
        message = Submit(
            request_id=str(number),
            prompt=prompt,
            sampling=SamplingParams(max_tokens=num_answer),
            namespace=b"bench",
            num_choices=num_choices,
        )
        answer = core.submit(message)
        if not isinstance(answer, Accepted):
            raise ValueError(answer.message)


def _draws(span: Span) -> tuple[Draw, ...]:
    if not span.draws:
        return ()
    sequence = span.sequence
    key = f"{sequence.request_id} {sequence.choice} {sequence.num_tokens}".encode()
    return (Draw(int.from_bytes(blake2b(key, digest_size=4).digest(), "little") % VOCABULARY),)
