"""A scripted model for the real engine: real scheduling, caching and messages, no tensors.

`serve_engine` runs an EngineCore over it behind a real socket, in a thread of the test's own process.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from engine.core import EngineCore, Runner
from engine.messages import EngineInfo
from engine.scheduler import Limits
from engine.sequence import Sequence
from engine.service import EngineService
from engine.step import Draw, SpanResult, Step, StepResult

Script = Callable[[Sequence], int]  # the next token of a sequence


def make_info(**changes: object) -> EngineInfo:
    """An engine's description, with a small pool unless told otherwise."""
    values = {
        "context_length": 4096,
        "vocab_size": 512,
        "block_size": 16,
        "num_blocks": 64,
        "kv_bytes": 0,
        "device": "cpu",
        "dtype": "float32",
    }
    return EngineInfo(**{**values, **changes})


class ScriptedRunner:
    """Draws what the script says. `before_step` runs first, and may raise or wait."""

    def __init__(
        self,
        script: Script,
        *,
        info: EngineInfo | None = None,
        before_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.info = info or make_info()
        self.num_computed = 0
        self._script = script
        self._before_step = before_step

    def run(self, step: Step) -> StepResult:
        self._before_step(step)
        self.num_computed += step.num_tokens
        return StepResult(
            tuple(SpanResult((self._draw(span.sequence),) if span.draws else ()) for span in step.spans)
        )

    def _draw(self, sequence: Sequence) -> Draw:
        token_id = self._script(sequence)
        if sequence.sampling.logprobs is None:
            return Draw(token_id)
        others = [(other, -2.0 - rank) for rank, other in enumerate(range(sequence.sampling.logprobs))]
        return Draw(token_id, -0.5, tuple([(token_id, -0.5), *others][: sequence.sampling.logprobs]))


def emit(token_ids: list[int], then: int) -> Script:
    """A script that says the given tokens, and `then` for ever after."""
    return lambda sequence: token_ids[sequence.num_drawn] if sequence.num_drawn < len(token_ids) else then


@contextmanager
def serve_engine(
    runner: Runner, folder: Path, limits: Limits | None = None
) -> Iterator[tuple[str, EngineCore]]:
    """Serve a runner; yields the address to connect to, and the core to look at when it is idle."""
    core = EngineCore(runner, limits or Limits(max_batch_tokens=256, max_sequences=64))
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    address = f"ipc://{folder}/engine.sock"
    socket.bind(address)
    should_stop = threading.Event()
    thread = threading.Thread(target=EngineService(core, socket).run, args=(should_stop,))
    thread.start()
    try:
        yield address, core
    finally:
        should_stop.set()
        thread.join()
        socket.close(linger=0)
