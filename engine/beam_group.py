"""The sequences that one beam search follows, and how they trade places after each round.

Owns which sequence stands for which live hypothesis. A hypothesis that goes on in one way keeps its sequence;
each further way is a new sequence over the same blocks.
"""

from array import array
from dataclasses import dataclass, field

from engine.beams import BeamSearch, Hypothesis
from engine.sequence import Sequence

__all__ = ["BeamGroup", "Round", "begin_search"]


@dataclass(frozen=True, slots=True)
class Round:
    """What became of a group's sequences. None of them has its new token yet."""

    going_on: list[tuple[Sequence, int]]  # and the token that each adds
    forks: list[Sequence]  # new ones, their last token added already
    dropped: list[Sequence]
    ended: list[Sequence]  # an end was found after their tokens; they may go on, too


@dataclass(slots=True, eq=False)
class BeamGroup:
    """One request's search. `members` stand in the order of `search.live`."""

    search: BeamSearch
    num_wanted: int
    members: list[Sequence]
    candidates: dict[Sequence, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether every member knows what could follow."""
        return len(self.candidates) == len(self.members)

    def play(self) -> Round:
        """One round of the search; from then on `members` are those that go on, forks included."""
        before = self.members
        going_on, ended_at = self.search.advance([self.candidates[member] for member in before])
        self.candidates.clear()
        if self.search.is_over:
            if self.search.live:
                ended_at += [parent for parent, _ in going_on[: self.num_wanted]]
            return Round([], [], before, [before[place] for place in ended_at])
        kept: dict[int, int] = {}  # the parent's place -> the first token that goes on from it
        forks: list[Sequence] = []
        self.members = []
        for parent, token_id in going_on:
            if parent not in kept:
                kept[parent] = token_id
                self.members.append(before[parent])
            else:
                forks.append(_fork(before[parent], token_id))
                self.members.append(forks[-1])
        return Round(
            [(before[place], token_id) for place, token_id in kept.items()],
            forks,
            [member for place, member in enumerate(before) if place not in kept],
            [before[place] for place in ended_at],
        )

    def answers(self) -> list[Hypothesis]:
        """The answers of a search that is over, best first."""
        return self.search.best(self.num_wanted)


def begin_search(sequence: Sequence, num_wanted: int) -> BeamGroup:
    """The search that a sequence asks for, which is its first member."""
    sampling = sequence.sampling
    assert sampling.beam is not None, "a search has parameters"
    search = BeamSearch(
        sampling.beam,
        max_tokens=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
        num_logprobs=sampling.logprobs or 0,
    )
    return BeamGroup(search, num_wanted, [sequence])


def _fork(parent: Sequence, token_id: int) -> Sequence:
    child = Sequence(
        request_id=parent.request_id,
        choice=parent.choice,
        tokens=array("i", parent.tokens),
        num_prompt_tokens=parent.num_prompt_tokens,
        sampling=parent.sampling,
        namespace=parent.namespace,
        retention=parent.retention,
        queue_priority=parent.queue_priority,
        order=parent.order,
        arrived=parent.arrived,
        num_weighed=parent.num_weighed,
        num_cached=parent.num_cached,
        explanation=parent.explanation,
        is_told=parent.is_told,
    )
    child.tokens.append(token_id)
    return child
