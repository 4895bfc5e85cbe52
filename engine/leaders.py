"""Whether a waiting sequence should let another compute what both need.

A leader is a sequence of the same namespace that runs or loads, and will soon commit tokens which the waiting
one needs next. Waiting costs nothing but time: a waiter holds no blocks and is looked at again every step, so
a leader that is preempted, aborted or fails simply leads no more.
"""

from collections.abc import Callable, Iterable

from engine.sequence import Sequence
from prefix_cache.tokens import common_prefix

__all__ = ["has_leader"]


def has_leader(waiting: Sequence, running: Iterable[Sequence], count_found: Callable[[], int]) -> bool:
    """Whether a running prompt covers tokens that the waiting sequence lacks.

    `count_found` says how many of its tokens the cache has; it is asked only if somebody might lead. A
    sequence computes its last token itself, so a prompt that covers only that one is not waited for.
    """
    leaders = [
        leader
        for leader in running
        if leader.namespace == waiting.namespace
        and leader.num_computed < leader.num_prompt_tokens
        and not leader.retention.is_side  # what it computes is never found
    ]
    if not leaders:
        return False
    num_found = count_found()
    tokens = bytearray(waiting.tokens[:-1].tobytes())
    # All that a leader has computed is in the cache, so what it shares beyond that is still to come.
    return any(
        common_prefix(bytearray(leader.tokens[: leader.num_prompt_tokens].tobytes()), tokens) > num_found
        for leader in leaders
    )
