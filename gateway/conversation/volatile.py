"""Finds prompts that begin a little differently each time: a clock or a random id in a system prompt, which
costs the cache everything after it.

It owns the last beginning of each tenant's requests, bounded in number and length. It is told the time, logs
nothing and keeps nothing that a client could read. Three requests of a tenant in a row whose first system
message (or first message, where there is none) differs only in one short place are a finding; requests that
differ otherwise are other conversations, and begin the count anew.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Finding", "VolatileWatch"]

MAX_TENANTS = 256
MAX_CHARACTERS = 32_768  # of a beginning; longer ones are not watched

_MAX_EARLY = 4  # messages in which a system message is looked for
_MAX_CHANGE = 64  # characters in which two beginnings may differ, on either side
_MIN_COMMON = 64  # characters that they must share
_MIN_SHARE = 4  # how many times longer than the change the common part is at least
_NUM_REQUESTS = 3
_QUIET_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Where prompts of a tenant part, again and again."""

    tenant: str
    message: int  # an index into the messages
    offset: int  # characters into its text
    num_lost_characters: int  # of this prompt, after that place
    is_news: bool  # whether nobody was told of this tenant for an hour


@dataclass(slots=True, eq=False)
class _Seen:
    message: int
    text: str
    num_alike: int = 1  # requests in a row that differ in one short place
    told: float | None = None  # when; seconds of the caller's clock


class VolatileWatch:
    """The last beginnings of all tenants."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def see(self, tenant: str, messages: Sequence[tuple[str, str]], now: float) -> Finding | None:
        """Compare a request with the tenant's last one. `messages` are roles and texts, `now` is seconds."""
        place = _early(messages)
        text = messages[place][1] if messages else ""
        if not text or len(text) > MAX_CHARACTERS:
            return None
        before = self._remember(tenant, _Seen(place, text))
        if before is None:
            return None
        seen = self._seen[tenant]
        seen.told = before.told
        offset = _short_change(before.text, text) if before.message == place else None
        if offset is None:
            return None
        seen.num_alike = before.num_alike + 1
        if seen.num_alike < _NUM_REQUESTS:
            return None
        is_news = seen.told is None or now - seen.told >= _QUIET_SECONDS
        if is_news:
            seen.told = now
        return Finding(
            tenant=tenant,
            message=place,
            offset=offset,
            num_lost_characters=len(text) - offset + sum(len(later) for _, later in messages[place + 1 :]),
            is_news=is_news,
        )

    def _remember(self, tenant: str, seen: _Seen) -> _Seen | None:
        before = self._seen.pop(tenant, None)
        self._seen[tenant] = seen
        if len(self._seen) > MAX_TENANTS:
            self._seen.popitem(last=False)
        return before


def _early(messages: Sequence[tuple[str, str]]) -> int:
    """The first system message among the early ones, else the first message."""
    roles = [role for role, _ in messages[:_MAX_EARLY]]
    return next((place for place, role in enumerate(roles) if role in ("system", "developer")), 0)


def _short_change(before: str, after: str) -> int | None:
    """Where two texts part, if they differ in one short place and share the rest; None otherwise."""
    if before == after:
        return None
    begin = _common(before, after, from_end=False)
    end = min(_common(before, after, from_end=True), len(before) - begin, len(after) - begin)
    change = max(len(before), len(after)) - begin - end
    common = begin + end
    is_short = change <= _MAX_CHANGE and common >= max(_MIN_COMMON, _MIN_SHARE * change)
    # a text that only grew at its end loses nothing that was there
    return begin if is_short and end else None


def _common(one: str, other: str, *, from_end: bool) -> int:
    """How many characters two texts share at an end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        alike = one.endswith(other[-middle:]) if from_end else one.startswith(other[:middle])
        low, high = (middle, high) if alike else (low, middle - 1)
    return low
