"""How many tokens are worth proposing for a sequence, from what became of those that were.

With a share `a` of proposals that hold, each standing on the one before it, k of them bring on average

    1 + a + a^2 + ... + a^k

tokens in one step (Leviathan et al., 2023). The step costs what one of k more tokens costs on this machine,
and what proposing costs; it brings the other sequences theirs, which wait for it. The k with which the whole
step brings most tokens a second is taken.

What a sequence for which proposing does not pay can waste is bounded: one token in _RETRY_STEPS steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.sequence import Sequence

__all__ = ["LookaheadPolicy"]

_NEWS = 0.2  # weight of one tested token against all before it
_HOPE = 0.7  # share of a sequence that is new
_MIN_GAIN = 1.05  # proposals must bring so many times what their time would bring without them
_RETRY_STEPS = 32  # a sequence for which it does not pay is tried again after so many steps, with one token


@dataclass(slots=True)
class _Record:
    share: float = _HOPE  # of proposals that hold
    num_rested: int = 0  # steps since the last proposal
    num_ahead: int = 0  # tokens that were last proposed for it
    gain: float = 0.0  # tokens that they were expected to bring


class LookaheadPolicy:
    """Chooses for each sequence by itself, taking the others to go on as they last did.

    Knows no clock: what steps cost is asked of `seconds`.
    """

    def __init__(
        self, seconds: Callable[[int], float], *, max_tokens: int, proposal_seconds: float = 0.0
    ) -> None:
        """`seconds` of a step by its number of tokens; `proposal_seconds` of making one proposal beside
        it.
        """
        self._seconds = seconds
        self._max_tokens = max_tokens
        self._proposal_seconds = proposal_seconds
        self._records: dict[Sequence, _Record] = {}
        self._num_ahead = 0  # of all records
        self._gain = 0.0

    def num_tokens(self, sequence: Sequence, num_running: int) -> int:
        """The length that pays most for a sequence in a step of so many sequences."""
        record = self._records.setdefault(sequence, _Record())
        length = self._best(record, max(num_running, 1))
        if length > 0:
            return length
        if record.num_ahead:
            self._set(record, 0)
        record.num_rested += 1
        # Whoever has nothing to propose is asked again at once: it costs nothing.
        return min(1, self._max_tokens) if record.num_rested >= _RETRY_STEPS else 0

    def note(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """What became of a step's proposals. A step for which nothing was found to propose says nothing of
        how many hold.
        """
        record = self._records.setdefault(sequence, _Record())
        if num_proposed > 0:
            # After the first one that failed, the rest was never put to the test.
            num_tested = num_accepted + (num_accepted < num_proposed)
            weight = 1.0 - (1.0 - _NEWS) ** num_tested
            record.share += weight * (num_accepted / num_tested - record.share)
            record.num_rested = 0
        self._set(record, num_proposed)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        record = self._records.pop(sequence, None)
        if record is not None:
            self._set(record, 0)

    def _set(self, record: _Record, num_ahead: int) -> None:
        gain = sum(record.share**length for length in range(1, num_ahead + 1))
        self._num_ahead += num_ahead - record.num_ahead
        self._gain += gain - record.gain
        record.num_ahead, record.gain = num_ahead, gain

    def _best(self, record: _Record, num_running: int) -> int:
        num_others = num_running + self._num_ahead - record.num_ahead  # tokens computed without proposals
        brought = num_running + self._gain - record.gain
        alone = self._seconds(num_others)
        if alone <= 0.0:
            return self._max_tokens
        best_length, best_rate = 0, 0.0
        gain, power = 0.0, 1.0
        for length in range(1, self._max_tokens + 1):
            power *= record.share
            gain += power
            cost = self._seconds(num_others + length) + length * self._proposal_seconds - alone
            rate = (brought + gain) / (alone + cost)
            if gain > _MIN_GAIN * cost * brought / alone and rate > best_rate:
                best_length, best_rate = length, rate
        return best_length
