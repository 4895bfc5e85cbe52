"""/admin/cache, /admin/requests, /admin/warnings and /admin/prefixes: the cache as its administrators see it.

Who may come here is decided before, by the path. None of it shows a word of anybody's messages but those of
shared prefixes, which an administrator wrote.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.cache_messages import CacheEvents, TierName
from engine.errors import EngineError
from gateway.errors import GatewayError, InvalidRequest, NotFound, error_body, from_engine
from gateway.events import EventResponse, Pace
from gateway.journal import Journal
from gateway.paging import MAX_LIMIT, list_of, parse_paging
from gateway.prefixes import SHARED, SharedPrefixes
from gateway.routes.answers import json_response
from gateway.services import Services
from gateway.store.prefixes import SharedPrefix
from gateway.wire.admin_answers import EventsAnswer, NodeList
from gateway.wire.body import require_json
from gateway.wire.cache_answers import CacheUse
from gateway.wire.session_answers import Deleted, PrefixAnswer
from gateway.wire.session_requests import NewPrefix, parse_body
from gateway.wire.stored import raw_messages

__all__ = ["AdminRoute"]

_TIERS: Mapping[str, TierName] = {"device": "device", "host": "host", "disk": "disk"}
_PREFIX_ID = re.compile(r"prefix_[0-9a-f]{24}")
_DRAIN_POLL_SECONDS = 0.5
_LOCATE_SECONDS = 2.0


class AdminRoute:
    """The endpoints, with their collaborators."""

    def __init__(self, services: Services, *, prefixes: SharedPrefixes, journal: Journal, pace: Pace) -> None:
        self.services = services
        self.prefixes = prefixes
        self.journal = journal
        self.pace = pace

    async def cache(self, request: Request) -> Response:
        """A page of one tier's tree."""
        query = request.query_params
        tier = _TIERS.get(query.get("tier", "device"))
        if tier is None:
            raise InvalidRequest(f"tier must be one of {', '.join(_TIERS)}.", param="tier")
        limit = parse_paging({"limit": query.get("limit", str(MAX_LIMIT))}).limit
        after = query.get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) < 19):
            raise InvalidRequest("after must be a node's serial; use the last_id of a page.", param="after")
        self.services.require_engine()
        return json_response(NodeList.of(await self.services.engine.nodes(tier, int(after), limit)))

    async def events(self, _request: Request) -> Response:
        """What happens in the cache from now on, as server-sent events."""
        self.services.require_engine()
        return EventResponse(self._events(), self.pace, ExitStack())

    async def requests(self, request: Request) -> Response:
        """How the cache served the last requests, newest first."""
        page = self.journal.requests(parse_paging(request.query_params))
        return json_response(list_of(page.items, [each.id for each in page.items], has_more=page.has_more))

    async def warnings(self, request: Request) -> Response:
        """Prompts that defeat the cache, newest first."""
        page = self.journal.warnings(parse_paging(request.query_params))
        return json_response(list_of(page.items, [each.id for each in page.items], has_more=page.has_more))

    async def list_prefixes(self, request: Request) -> Response:
        """A page of the shared prefixes."""
        page = await self.prefixes.store.page(parse_paging(request.query_params))
        places = await asyncio.gather(*[self._locate(prefix) for prefix in page.items])
        answers = [PrefixAnswer.of(*each) for each in zip(page.items, places, strict=True)]
        ids = [answer.id for answer in answers]
        return json_response(list_of(answers, ids, has_more=page.has_more))

    async def create_prefix(self, request: Request) -> Response:
        """Share a beginning with all tenants."""
        require_json(request.headers.get("content-type", ""))
        asked, fields = parse_body(await request.body(), NewPrefix)
        messages = raw_messages(fields)
        self.services.require_engine()
        prefix = await self.prefixes.share(asked.name, messages)
        return json_response(PrefixAnswer.of(prefix, await self._locate(prefix)))

    async def delete_prefix(self, request: Request) -> Response:
        """Share it no more."""
        prefix_id = str(request.path_params["prefix_id"])
        # only what could be an id is looked up: databases differ in what strings they take
        prefix = await self.prefixes.store.get(prefix_id) if _PREFIX_ID.fullmatch(prefix_id) else None
        if prefix is not None:
            self.services.require_engine()
        if prefix is None or not await self.prefixes.remove(prefix):
            raise NotFound("There is no shared prefix of this id.", param="prefix_id")
        return json_response(Deleted(id=prefix_id, object="shared_prefix.deleted"))

    async def _events(self) -> AsyncGenerator[bytes]:
        """Ends with the engine, and when the server drains: a watcher must not keep it from ending."""
        try:
            async with aclosing(self.services.engine.cache_events()) as events:
                coming = asyncio.ensure_future(anext(events, None))
                try:
                    while not self.services.lifecycle.is_draining:
                        await asyncio.wait((coming,), timeout=_DRAIN_POLL_SECONDS)
                        if not coming.done():
                            continue
                        told = coming.result()
                        if told is None:
                            return
                        yield _event(told)
                        coming = asyncio.ensure_future(anext(events, None))
                finally:
                    coming.cancel()
                    await asyncio.wait((coming,))
        except EngineError as error:
            yield b"data: " + error_body(from_engine(error)) + b"\n\n"

    async def _locate(self, prefix: SharedPrefix) -> CacheUse | None:
        engine = self.services.engine
        if not engine.is_ready:
            return None
        try:
            async with asyncio.timeout(_LOCATE_SECONDS):
                ids = await self.prefixes.ids(prefix)
                return CacheUse.of(await engine.locate(SHARED, ids))
        except (EngineError, GatewayError, TimeoutError):
            return None


def _event(events: CacheEvents) -> bytes:
    return b"data: " + msgspec.json.encode(EventsAnswer.of(events)) + b"\n\n"
