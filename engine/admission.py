"""Who starts next, and how blocks come to those that start.

Tenants take turns by what was computed for them (shares.py); within a tenant's line the order is that of
waiting.py. Two bounds follow. At most `max_overtaken` younger sequences of its own tenant start before one
that waits. And whoever had its turn and found no room sees at most so many of others start: then nobody does
until it has its blocks, so that small requests, whosever they are, cannot keep a large one out for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.leaders import has_leader
from engine.running import RunningSet
from engine.sequence import Sequence, Status
from engine.shares import Shares
from engine.step import StepPlan
from engine.waiting import WaitingLines
from prefix_cache.quota import Account
from prefix_cache.tiers import TieredCache

__all__ = ["Admission", "Limits"]

_MAX_LOOKED_AT = 32  # of a line: matching more of them against the cache would cost every step


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one step may hold, how unfair admission may be, and how much may wait."""

    max_batch_tokens: int  # computed by one step
    max_sequences: int  # running at once
    max_overtaken: int = 64  # younger sequences of its tenant that may start before one that waits
    max_waiting: int = 512  # requests of one tenant that have not begun
    max_waiting_tokens: int = 1 << 20  # of their prompts
    max_wait_seconds: float = 300.0  # before a request begins

    def __post_init__(self) -> None:
        assert self.max_sequences <= self.max_batch_tokens, "every running sequence must fit into a step"


class Admission:
    """The sequences that do not run, and what tenants were served. Adds to the running ones, removes none."""

    def __init__(
        self, cache: TieredCache, limits: Limits, running: RunningSet, weights: Mapping[Account, float]
    ) -> None:
        self.waiting = WaitingLines(limits.max_overtaken)
        self.shares = Shares(weights)
        self._forks: dict[str, list[Sequence]] = {}  # choices that wait when their first one has its prompt
        self._cache = cache
        self._limits = limits
        self._running = running

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait, a new one or one that gave way."""
        present = {*self.waiting.accounts, *(each.account for each in self._running)}
        if sequence.account not in present:
            self.shares.enter(sequence.account, present)
        sequence.status = Status.WAITING
        self.waiting.add(sequence)

    def hold_back(self, request_id: str, forks: list[Sequence]) -> None:
        """Keep a request's further choices until its first one has its prompt."""
        if forks:
            self._forks[request_id] = forks

    def add_forks(self, leader: Sequence) -> None:
        """The prompt is computed and committed: the other choices match it, and compute its last token only.

        What the cache had of it is what it had when the leader came.
        """
        for fork in self._forks.pop(leader.request_id, []):
            fork.num_cached, fork.explanation = leader.num_cached, leader.explanation
            self.add(fork)

    def take_out(self, request_id: str, is_meant: Callable[[Sequence], bool]) -> list[Sequence]:
        """Remove those of a request's choices that are meant. If the one with the prompt has gone, from here
        or from the running ones, the next one leads.
        """
        gone = [each for each in self.waiting if each.request_id == request_id and is_meant(each)]
        for sequence in gone:
            self.waiting.remove(sequence)
        forks = self._forks.pop(request_id, [])
        staying = [fork for fork in forks if not is_meant(fork)]
        if staying and all(each.request_id != request_id for each in (*self._running, *self.waiting)):
            self.add(staying.pop(0))
        self.hold_back(request_id, staying)
        return gone + [fork for fork in forks if is_meant(fork)]

    def is_full(self, account: Account, num_tokens: int) -> bool:
        """Whether a request of so many prompt tokens is more than its tenant may have waiting. One that would
        wait alone never is.
        """
        line = self.waiting.new_of(account)
        num_waiting_tokens = num_tokens + sum(sequence.num_tokens for sequence in line)
        is_over = num_waiting_tokens > self._limits.max_waiting_tokens
        return bool(line) and (len(line) >= self._limits.max_waiting or is_over)

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences that have not begun and waited longer than requests may."""
        latest = now - self._limits.max_wait_seconds
        return [each for each in self.waiting if not each.has_begun and each.arrived < latest]

    def admit(self, plan: StepPlan, now: float) -> list[Sequence]:
        """Start what can start while the plan has tokens left, and plan its first tokens. Returns what has
        started.
        """
        started: list[Sequence] = []
        lacking: list[Sequence] = []  # of each tenant the one whose turn came, and that found no room
        planned = dict.fromkeys(self.waiting.accounts, 0)
        lines: dict[Account, list[Sequence]] = {}
        while (
            planned
            and plan.budget > 0
            and not plan.has_prompts
            and len(self._running) < self._limits.max_sequences
        ):
            account = min(planned, key=lambda each: self._turn_of(each, planned[each]))
            if account not in lines:
                lines[account] = self._line(account)
            if not lines[account]:
                del planned[account]
                continue
            sequence = lines[account].pop(0)
            if not self.waiting.may_pass(sequence):
                break  # whoever is due was tried before, and lacks blocks
            is_due = self.waiting.is_due(sequence)
            if not is_due and self._has_leader(sequence):
                continue
            budget = plan.budget
            if self.start(sequence, plan, now):
                started.append(sequence)
                planned[account] += budget - plan.budget
                for other in lacking:
                    other.num_overtaken += other.account != account  # its own tenant's are counted already
            elif self._cache.device.ledger.is_capped(sequence.namespace):
                del planned[account]  # its own ceiling is in the way, and holds up nobody else
            elif is_due:
                break
            elif all(other.account != account for other in lacking):
                lacking.append(sequence)
        return started

    def wants_way(self) -> Account | None:
        """The tenant that is to get a place though all are taken: it waits, and has less than its share."""
        if len(self._running) < self._limits.max_sequences or not len(self.waiting):
            return None
        account = min(self.waiting.accounts, key=self._turn_of)
        return account if self._running.count_of(account) < self._places_of(account) else None

    def who_gives_way(self, account: Account) -> Sequence | None:
        """The youngest sequence of the tenant that exceeds its places most, if one does; not one whose turn
        would come first when it waits.
        """
        turn = self._turn_of(account)
        others = {each.account for each in self._running if self._turn_of(each.account) > turn}
        excess = {each: self._running.count_of(each) - self._places_of(each) for each in others}
        most = max(excess, key=lambda each: (excess[each], each), default=None)
        return self._running.youngest(most) if most is not None and excess[most] > 0 else None

    def _places_of(self, account: Account) -> int:
        """Places among the running ones that a tenant's weight entitles it to, rounded down."""
        present = {*self.waiting.accounts, *(each.account for each in self._running)}
        total = sum(self.shares.weight(each) for each in present)
        return int(self._limits.max_sequences * self.shares.weight(account) / total)

    def _line(self, account: Account) -> list[Sequence]:
        return self.waiting.in_order(account, self._count_found, _MAX_LOOKED_AT)

    def _turn_of(self, account: Account, num_planned: int = 0) -> tuple[float, int, Account]:
        """Tenants take turns by this, the lowest first."""
        served = self.shares.served(account) + num_planned / self.shares.weight(account)
        return served, self._running.count_of(account), account

    def _count_found(self, sequence: Sequence) -> int:
        return self._cache.match_length(sequence.namespace, sequence.tokens[:-1].tobytes())

    def _has_leader(self, sequence: Sequence) -> bool:
        if sequence.weighs_prompt:
            return False
        return has_leader(sequence, self._running, lambda: self._count_found(sequence))

    def start(self, sequence: Sequence, plan: StepPlan, now: float) -> bool:
        """Lease blocks to a waiting sequence if all its tokens fit, and one more block for each that runs."""
        lease = self._cache.acquire(
            sequence.namespace,
            sequence.tokens.tobytes(),
            max_new=plan.budget,
            num_required=sequence.num_tokens,
            num_spare=len(self._running) * self._cache.block_size,
            now=now,
            retention=sequence.retention,
            max_matched=max(sequence.num_weighed - 1, 0) if sequence.weighs_prompt else None,
        )
        if lease is None:
            return False
        lease.is_passing = lease.is_passing or (sequence.sampling.beam is not None and sequence.num_drawn > 0)
        sequence.lease = lease
        sequence.num_computed = lease.num_matched
        self.waiting.start(sequence)
        self._running.add(sequence)
        if self._cache.is_loading(lease):
            sequence.status = Status.LOADING
            return True
        sequence.status = Status.RUNNING
        plan.add(sequence, min(sequence.num_missing, plan.budget))
        return True
