"""An engine in this process that follows a script, for what runs without a server."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.messages import (
    Abort,
    Accepted,
    EngineInfo,
    FromEngine,
    Refused,
    Submit,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from tests.fakes import engine_info

__all__ = ["ScriptedCore"]


@dataclass(slots=True, eq=False)
class ScriptedCore:
    """Implements `gateway.offline_run.Core`. Each choice of each prompt says its text of `texts`, counted
    over all of a run, a letter a step, and then draws token 257. `before_step` is called before each step.
    """

    texts: Sequence[str]
    info: EngineInfo = field(default_factory=engine_info)
    refusals: dict[int, Refused] = field(default_factory=dict)  # by the number of the submit
    failure: Refused | None = None  # told in the first step
    before_step: Callable[[], None] = lambda: None
    submits: list[Submit] = field(default_factory=list)
    aborts: list[Abort] = field(default_factory=list)
    num_steps: int = 0
    is_closed: bool = False
    _running: dict[tuple[str, int], tuple[Submit, str, int]] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, message: Submit) -> Accepted | Refused:
        place = len(self.submits)
        self.submits.append(message)
        if place in self.refusals:
            return self.refusals[place]
        for choice in range(message.num_choices):
            text = self.texts[min(len(self._running), len(self.texts) - 1)]
            self._running[message.request_id, choice] = (message, text, 0)
        return Accepted(message.request_id)

    def abort(self, message: Abort) -> None:
        self.aborts.append(message)
        for key in list(self._running):
            if key[0] == message.request_id and message.choice in (None, key[1]):
                del self._running[key]

    def tend(self) -> list[FromEngine]:
        return [] if self.failure is None else [self.failure]

    def step(self) -> list[FromEngine]:
        self.before_step()
        self.num_steps += 1
        return [TokenEvents([self._event(*key) for key in list(self._running)])]

    def close(self) -> None:
        self.is_closed = True

    def _event(self, request_id: str, choice: int) -> TokenEvent:
        submit, text, place = self._running[request_id, choice]
        sampling = submit.sampling
        end = place + 1 if sampling.beam is None else len(text)
        ids = [ord(letter) for letter in text[place:end]]
        has_stopped = not ids or sampling.beam is not None
        is_over = has_stopped or place + 1 >= sampling.max_tokens
        self._running[request_id, choice] = (submit, text, place + 1)
        if is_over:
            del self._running[request_id, choice]
        weighed = sampling.prompt_logprobs is not None and choice == 0 and place == 0
        return TokenEvent(
            request_id=request_id,
            choice=choice,
            token_ids=ids,
            logprobs=None if sampling.logprobs is None else [_weigh(each, sampling.logprobs) for each in ids],
            finish_reason=None if not is_over else "stop" if has_stopped else "length",
            stop_token_id=257 if has_stopped else None,
            num_cached_tokens=3,
            prompt_logprobs=[_weigh(each, 1) for each in array("i", submit.prompt)[1:]] if weighed else None,
        )


def _weigh(token_id: int, num_top: int) -> TokenLogprob:
    return TokenLogprob(-0.5, [(token_id + place, -0.5 - place) for place in range(num_top)])
