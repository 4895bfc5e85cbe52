"""What has been computed for each tenant, weighed by what it is entitled to.

Of the tenants that want something, the one that was served least goes next. Counters of tokens, lifted when a
tenant comes back, so that nobody saves up by resting: Sheng et al., "Fairness in serving large language
models" (OSDI 2024).
"""

from collections.abc import Iterable, Mapping

from prefix_cache.quota import Account

__all__ = ["Shares"]


class Shares:
    """One counter for each tenant that ever wanted anything."""

    def __init__(self, weights: Mapping[Account, float]) -> None:
        """A tenant that is not named weighs 1."""
        assert all(weight > 0 for weight in weights.values()), "a tenant without weight would never be served"
        self._weights = dict(weights)
        self._served: dict[Account, float] = {}
        self._level = 0.0  # of whoever was served last

    def weight(self, account: Account) -> float:
        """What a tenant is entitled to, against the others'."""
        return self._weights.get(account, 1.0)

    def served(self, account: Account) -> float:
        """Tokens computed for a tenant, divided by its weight."""
        return self._served.get(account, 0.0)

    def enter(self, account: Account, others: Iterable[Account]) -> None:
        """A tenant that wanted nothing wants something, beside `others` that do already: it neither comes
        back with what it did not use, nor pays for what it had while nobody else was there.
        """
        least = min((self.served(other) for other in others if other != account), default=self._level)
        self._served[account] = max(self.served(account), least)

    def charge(self, account: Account, num_tokens: int) -> None:
        """So many tokens are computed for a tenant."""
        self._level = self._served[account] = self.served(account) + num_tokens / self.weight(account)
