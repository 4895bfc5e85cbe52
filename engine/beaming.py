"""Beam searches in the scheduler: which sequences stand for hypotheses, and how their blocks are shared.

A hypothesis that goes on in several ways is forked through the cache: the new sequence matches all that its
parent has computed, holds its full blocks, and copies the one that is not full. What hypotheses compute
passes: it goes when they are dropped, unless it is part of an answer.

A hypothesis that is computed up to its end needs no blocks until the others are too, so a search gets on
however little memory there is.
"""

from engine.admission import Admission, Limits
from engine.beam_group import BeamGroup, Round, begin_search
from engine.running import RunningSet
from engine.sequence import Sequence, Status
from engine.step import Draw, Outcome
from prefix_cache.lease import Retention
from prefix_cache.tiers import TieredCache

__all__ = ["Beaming"]

_FORK = Retention(is_side=True)  # a fork is no new use of what it matches


class Beaming:
    """The searches that go on, by request. Adds forks to the running sequences; removes none."""

    def __init__(self, cache: TieredCache, limits: Limits, running: RunningSet, admission: Admission) -> None:
        self.num_forks = 0
        self._cache = cache
        self._limits = limits
        self._running = running
        self._admission = admission
        self._groups: dict[str, BeamGroup] = {}

    def begin(self, sequence: Sequence, num_wanted: int) -> None:
        """A sequence that begins a search."""
        self._groups[sequence.request_id] = begin_search(sequence, num_wanted)

    def forget(self, request_id: str) -> list[Sequence]:
        """A request has gone, whether it searches or not. Returns its hypotheses that are in no queue."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return []
        return [each for each in group.members if each.lease is None and each in group.candidates]

    def note(self, sequence: Sequence, candidates: tuple[tuple[int, float], ...]) -> None:
        """What could follow a hypothesis."""
        self._groups[sequence.request_id].candidates[sequence] = candidates

    def ready(self) -> list[BeamGroup]:
        """Searches of which every hypothesis is computed."""
        return [group for group in self._groups.values() if group.is_ready]

    def is_idle(self, sequence: Sequence) -> bool:
        """Whether a sequence is a hypothesis that only waits for the others of its search."""
        group = self._groups.get(sequence.request_id)
        return group is not None and sequence in group.candidates

    def play(self, group: BeamGroup, now: float) -> tuple[list[Sequence], list[Outcome]]:
        """One round of a search: the sequences that it drops, and its answers if it is over."""
        first = group.members[0]
        played = group.play()
        self._keep_answers(played)
        if group.search.is_over:
            self.forget(first.request_id)
            return played.dropped, _outcomes(group, first)
        for fork in played.forks:
            self._fork(fork, now)
        for sequence, token_id in played.going_on:
            sequence.tokens.append(token_id)
            if sequence.lease is not None:
                sequence.lease.is_passing = True
            else:
                self._admission.add(sequence)
        return played.dropped, []

    def _keep_answers(self, played: Round) -> None:
        for sequence in played.ended:
            if sequence.lease is not None and not sequence.retention.is_side:
                self._cache.keep(sequence.lease)
                sequence.lease.is_passing = True

    def _fork(self, fork: Sequence, now: float) -> None:
        """Give a fork its parent's blocks, which are committed; it waits if there is no room for its own."""
        self.num_forks += 1
        lease = None
        if len(self._running) < self._limits.max_sequences:
            lease = self._cache.acquire(
                fork.namespace,
                fork.tokens.tobytes(),
                max_new=1,
                num_required=fork.num_tokens,
                now=now,
                retention=_FORK,
            )
        if lease is None:
            self._admission.add(fork)
            return
        fork.lease = lease
        lease.retention = fork.retention
        fork.num_computed = lease.num_matched
        fork.status = Status.LOADING if self._cache.is_loading(lease) else Status.RUNNING
        self._running.add(fork)


def _outcomes(group: BeamGroup, sequence: Sequence) -> list[Outcome]:
    outcomes = []
    for choice, answer in enumerate(group.answers()):
        has_stopped = answer.finish_reason == "stop"
        draws: tuple[Draw, ...] = answer.draws[:-1] if has_stopped else answer.draws
        stop = answer.draws[-1].token_id if has_stopped else None
        is_first = choice > 0 or not sequence.is_told
        outcomes.append(Outcome(sequence, choice, draws, answer.finish_reason, stop, is_first=is_first))
    return outcomes
