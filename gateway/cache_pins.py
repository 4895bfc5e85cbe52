"""Beginnings of prompts that clients want kept for a time: pins of the engine under names of the gateway's.

A tenant has a bounded number of them; the oldest ends when there is one too many. It owns their names. What
the engine does not grant is not kept for a time, and stays in the cache as long as anything else.
"""

from collections import OrderedDict
from hashlib import blake2b

import structlog

from engine.client import Engine
from engine.errors import EngineError

__all__ = ["CachePins", "pin_name"]

_MAX_PINS = 256  # of a tenant


def pin_name(namespace: bytes, key: str | None, ttl: str, ids: bytes, place: int) -> str:
    """The name under which a beginning is kept. With a key a later request's replaces it; without one the
    same beginning is kept longer.
    """
    about = b"ids" + ids if key is None else b"key%d:" % place + key.encode()
    return f"prompt-{blake2b(namespace + about, digest_size=16).hexdigest()}-{ttl}"


class CachePins:
    """The pins of all tenants."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[str, OrderedDict[str, None]] = {}  # by tenant, the oldest first

    async def keep(self, tenant: str, name: str, namespace: bytes, ids: bytes, seconds: float) -> int:
        """Keep a beginning (packed int32 ids); says how many of its tokens are kept. Never raises
        EngineError.
        """
        names = self._names.setdefault(tenant, OrderedDict())
        names[name] = None
        names.move_to_end(name)
        try:
            while len(names) > _MAX_PINS:
                await self._engine.unpin(names.popitem(last=False)[0])
            pinned = await self._engine.pin(name, namespace, ids, seconds)
        except EngineError as error:
            structlog.get_logger().warning("prompt.not_kept", tenant=tenant, reason=type(error).__name__)
            return 0
        if pinned.message is not None:
            structlog.get_logger().info("prompt.not_kept", tenant=tenant, reason=pinned.message)
        return pinned.num_tokens
