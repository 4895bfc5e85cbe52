"""Beginnings that all tenants share: computed once, kept on the device, found by everybody.

It owns the order of computing, pinning and storing them, and brings them back whenever the engine was
replaced. An engine's memory dies with it; the rows stay.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import structlog

from engine.errors import EngineDied, EngineError, EngineStopping
from engine.messages import EngineInfo, Submit
from engine.sequence import SamplingParams
from gateway.beside import to_its_end
from gateway.errors import Conflict, ContextTooLong, GatewayError
from gateway.rendering import ChatRenderer
from gateway.services import Services
from gateway.store.prefixes import PrefixStore, SharedPrefix
from gateway.wire.stored import messages_of

__all__ = ["SHARED", "SharedPrefixes", "keep_prefixes"]

_LONGEST_PAUSE = 60  # polls
SHARED = b""  # the namespace that every tenant sees


class SharedPrefixes:
    """The shared prefixes of one server."""

    def __init__(self, services: Services, renderer: ChatRenderer) -> None:
        self.store = PrefixStore(services.database)
        self.renderer = renderer
        self._engine = services.engine

    async def share(self, name: str | None, messages: Sequence[dict[str, Any]]) -> SharedPrefix:
        """Compute, keep and store a new one.

        Raises InvalidRequest when it cannot be rendered, ContextTooLong, Conflict when the engine cannot keep
        it, and what the engine raises.
        """
        prefix = SharedPrefix(
            id=f"prefix_{secrets.token_hex(12)}", created_at=datetime.now(UTC), name=name, messages=messages
        )
        try:
            await self._compute(prefix)
            await self.store.add(prefix)
        except BaseException:
            # also when nobody waits any more: what all may find must be what is stored
            await asyncio.shield(asyncio.ensure_future(self._give_up(prefix)))
            raise
        return prefix

    async def remove(self, prefix: SharedPrefix) -> bool:
        """Forget one. False: somebody else did. The row goes last, so what fails may be asked for again."""
        await self._let_go(prefix)
        return await self.store.delete(prefix.id)

    async def ids(self, prefix: SharedPrefix) -> bytes:
        """The ids that it is, packed int32.

        Raises InvalidRequest when the template refuses its messages, and ContextTooLong.
        """
        messages = messages_of(prefix.messages)
        self.renderer.refuse_hopeless_length(messages, self._engine.info.max_request_tokens)
        prompt = await self.renderer.render(messages, SHARED, add_generation_prompt=False)
        return prompt.ids.tobytes()

    async def restore(self) -> None:
        """Compute and keep every stored one; one that cannot be is logged and left.

        Raises EngineDied and EngineStopping.
        """
        for prefix in await to_its_end(self.store.all()):
            try:
                await self._compute(prefix)
            except (EngineDied, EngineStopping):
                raise
            except (GatewayError, EngineError) as error:
                structlog.get_logger().warning(
                    "prefix.not_kept", prefix=prefix.id, reason=type(error).__name__
                )
                await self._give_up(prefix)
            if await to_its_end(self.store.get(prefix.id)) is None:
                await self._let_go(prefix)  # it was removed in the meantime

    async def _compute(self, prefix: SharedPrefix) -> None:
        ids = await self.ids(prefix)
        limit = self._engine.info.max_request_tokens
        if len(ids) // 4 >= limit:
            raise ContextTooLong(
                f"The messages have {len(ids) // 4:,} tokens; beside an answer {limit - 1:,} fit.",
                param="messages",
            )
        submit = Submit(
            request_id=prefix.id,
            prompt=ids,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            namespace=SHARED,
        )
        with closing(await self._engine.start([submit])) as events:
            async for _event in events:
                pass  # the answer is not wanted; its prompt is
        pinned = await self._engine.pin(prefix.id, SHARED, ids, None)
        if pinned.num_tokens < len(ids) // 4:
            # what all may find must always be there, or its absence would tell who else was served
            reason = pinned.message or f"only {pinned.num_tokens:,} of its tokens stayed on the device"
            raise Conflict(f"The prefix could not be kept: {reason}.", code="pin_refused")

    async def _give_up(self, prefix: SharedPrefix) -> None:
        """Let go of one that is not kept; the failure that led here is the one that is told."""
        try:
            await self._let_go(prefix)
        except EngineError as error:
            structlog.get_logger().warning(
                "prefix.not_forgotten", prefix=prefix.id, reason=type(error).__name__
            )

    async def _let_go(self, prefix: SharedPrefix) -> None:
        await self._engine.unpin(prefix.id)
        try:
            ids = await self.ids(prefix)
        except GatewayError:
            return  # no template takes it any more, so nothing of it was computed
        await self._engine.forget(SHARED, ids)


async def keep_prefixes(services: Services, prefixes: SharedPrefixes, *, poll_seconds: float = 1.0) -> None:
    """Bring the shared prefixes back to every engine that comes; runs until it is cancelled.

    What fails is tried again, each time after a longer pause.
    """
    served: EngineInfo | None = None
    pause = poll_seconds
    while True:
        engine = services.engine
        # an engine that was replaced describes itself anew, even if nobody saw it missing
        if engine.is_ready and engine.info is not served:
            served = engine.info
            try:
                await prefixes.restore()
                pause = poll_seconds
            except Exception as error:  # noqa: BLE001 - the next engine, or database, may take them
                served = None
                pause = min(2 * pause, _LONGEST_PAUSE * poll_seconds)
                structlog.get_logger().warning("prefixes.not_kept", reason=type(error).__name__)
        await asyncio.sleep(pause)
