"""Runs generations on an engine in this process, one step after the other, until all are finished.

Ctrl-C is heeded between two steps, so that nothing is left half done: what still runs is aborted, its blocks
come home, and KeyboardInterrupt is raised. However a run ends, nothing of it stays in the engine.
"""

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from engine.errors import EngineError
from engine.messages import Abort, Accepted, EngineInfo, FromEngine, Refused, Submit, TokenEvents
from gateway.choice import Piece
from gateway.generation import Generation

__all__ = ["Core", "run_all"]


class Core(Protocol):
    """An engine in this process, as `engine.local.load_core` makes it."""

    @property
    def info(self) -> EngineInfo:
        """What it turned out to be."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        ...

    def submit(self, message: Submit) -> Accepted | Refused:
        """Queue a request."""
        ...

    def abort(self, message: Abort) -> None:
        """Forget a request, or one of its choices."""
        ...

    def tend(self) -> list[FromEngine]:
        """What is to be done between steps."""
        ...

    def step(self) -> list[FromEngine]:
        """Compute one step."""
        ...

    def close(self) -> None:
        """Let go of what it holds beside memory."""
        ...


@dataclass(slots=True, eq=False)
class _Interrupts:
    """Holds Ctrl-C back while steps run. Only the main thread gets it, so only there is anything to hold."""

    came: bool = False
    _before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.came = True

    def raise_if_any(self) -> None:
        if self.came:
            raise KeyboardInterrupt


def run_all(core: Core, generations: Sequence[Generation], tell: Callable[[Generation, Piece], None]) -> None:
    """Run all to their ends; `tell` is given every piece.

    Raises ValueError when one cannot run, before any has; EngineError when one fails.
    """
    by_id = {generation.submit.request_id: generation for generation in generations}
    with _Interrupts() as interrupts:
        try:
            for generation in generations:
                answer = core.submit(generation.submit)
                if isinstance(answer, Refused):
                    raise ValueError(answer.message)
            while not all(each.is_finished for each in by_id.values()):
                _take(core, by_id, tell)
                interrupts.raise_if_any()
        finally:
            for request_id in by_id:
                core.abort(Abort(request_id=request_id))


def _take(core: Core, by_id: dict[str, Generation], tell: Callable[[Generation, Piece], None]) -> None:
    """Compute a step, and tell what it brought."""
    if not core.has_work:
        raise EngineError("the engine left a choice without an end")
    for message in (*core.tend(), *core.step()):
        if isinstance(message, Refused):
            raise EngineError(message.message)
        if not isinstance(message, TokenEvents):
            continue
        for event in message.events:
            generation = by_id[event.request_id]
            choice = generation.choices[event.choice]
            was_finished = choice.is_finished
            for piece in generation.push(event):
                tell(generation, piece)
            if choice.hit_stop_string and not was_finished:
                core.abort(Abort(request_id=event.request_id, choice=event.choice))
