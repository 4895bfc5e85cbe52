"""Stand-ins of our own: an engine that follows a script, and a vocabulary small enough to read."""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.cache_messages import (
    CacheEvents,
    CacheReport,
    Forgotten,
    Moved,
    NodePage,
    Pinned,
    Residency,
    TierName,
    TierUse,
)
from engine.errors import EngineDied, EngineStopping
from engine.messages import EngineInfo, EngineStats, Submit
from tests.scripted_events import Script, ScriptedEvents

__all__ = ["ByteTokenizer", "CacheCall", "Script", "ScriptedEngine", "engine_info"]


class ByteTokenizer:
    """Ids 0 to 255 are bytes; then come the special tokens, then whatever a test names with `id_of`."""

    def __init__(self, specials: Sequence[str] = ("<|im_start|>", "<|im_end|>")) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] + [b""] * len(specials)
        self.special_tokens: Mapping[str, int] = {text: 256 + place for place, text in enumerate(specials)}
        self.control_ids = frozenset(self.special_tokens.values())
        self.digest = b"bytes"
        self.bos_token_id: int | None = None
        self.eos_token_id: int | None = self.special_tokens.get("<|im_end|>")
        self.vocab_size = 1024

    def encode(self, text: str) -> list[int]:
        """One token a byte: named tokens are only ever generated."""
        return list(text.encode())

    def decode_bytes(self, token_id: int) -> bytes:
        """Specials and unnamed ids have no bytes."""
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def id_of(self, piece: str | bytes) -> int:
        """The id of a token with these bytes; made when first named."""
        data = piece.encode() if isinstance(piece, str) else piece
        if data not in self._pieces:
            self._pieces.append(data)
        return self._pieces.index(data)


def engine_info(max_request_tokens: int = 4096) -> EngineInfo:
    """An engine's facts for tests."""
    return EngineInfo(
        context_length=max_request_tokens,
        vocab_size=1024,
        block_size=16,
        num_blocks=max_request_tokens // 16 + 1,
        kv_bytes=1 << 20,
        device="cpu",
        dtype="float32",
    )


@dataclass(frozen=True, slots=True)
class CacheCall:
    """What the cache was asked: the protocol's method, and its arguments by name."""

    name: str
    arguments: dict[str, Any]

    @property
    def ids(self) -> list[int]:
        """The token ids of the prefix that it was about."""
        return array("i", self.arguments["tokens"]).tolist()


@dataclass(slots=True, eq=False)
class ScriptedEngine:
    """Implements `engine.client.Engine`. Choice i follows `scripts[i]`, counted over all prompts of a
    request; further ones follow the last. A token's log-probability is `logprob`, or what `logprobs` says.

    Of the cache it says what a test writes into `tiers`, `moved`, `pinned`, `page` and `events`, and raises
    `cache_failure` instead if there is one.
    """

    scripts: list[Script]
    info: EngineInfo = field(default_factory=engine_info)
    is_ready: bool = True
    step_seconds: float = 0.0
    num_cached_tokens: int = 0
    refusal: Exception | None = None  # of whatever is submitted
    failure: Exception = field(default_factory=lambda: EngineStopping("stopping"))
    submits: list[Submit] = field(default_factory=list)
    aborts: list[tuple[str, int | None]] = field(default_factory=list)
    logprob: float = -0.5
    logprobs: dict[int, float] = field(default_factory=dict)
    num_running: int = 0
    num_computed: int = 0  # of every prompt
    num_aborted: int = 0
    report: CacheReport | None = None  # on the first event of every choice
    tiers: dict[TierName, TierUse] = field(default_factory=dict)
    moved: Moved = field(default_factory=lambda: _moved())
    pinned: Pinned | None = None  # None: all that is asked for
    page: NodePage = field(default_factory=lambda: NodePage(ticket=0, nodes=[], next=None))
    events: list[CacheEvents] = field(default_factory=list)
    dies_after_events: bool = True  # for who listens; else nothing more happens
    cache_failure: Exception | None = None
    cache_calls: list[CacheCall] = field(default_factory=list)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, submits: Sequence[Submit]) -> ScriptedEvents:
        """Accepts all, or raises `refusal` in place of the last one's acceptance."""
        self.submits += submits
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        return ScriptedEvents(self, submits)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Remembered; the events act on it at their next step."""
        self.aborts.append((request_id, choice))

    async def progress(self, request_id: str) -> int:
        """The scripted progress."""
        self._called("progress", request_id=request_id)
        return self.num_computed

    async def locate(self, namespace: bytes, tokens: bytes) -> Residency:
        """The scripted tiers."""
        self._called("locate", namespace=namespace, tokens=tokens)
        return Residency(ticket=0, num_tokens=len(tokens) // 4, tiers=self.tiers)

    async def park(self, namespace: bytes, tokens: bytes) -> Moved:
        """The scripted move."""
        self._called("park", namespace=namespace, tokens=tokens)
        return self.moved

    async def prefetch(self, namespace: bytes, tokens: bytes) -> Moved:
        """The scripted move."""
        self._called("prefetch", namespace=namespace, tokens=tokens)
        return self.moved

    async def forget(self, namespace: bytes, tokens: bytes, num_kept: int = 0) -> Forgotten:
        """One block of the device."""
        self._called("forget", namespace=namespace, tokens=tokens, num_kept=num_kept)
        return Forgotten(ticket=0, num_blocks={"device": 1})

    async def pin(self, name: str, namespace: bytes, tokens: bytes, seconds: float | None) -> Pinned:
        """The scripted pin, or all of the prefix."""
        self._called("pin", name=name, namespace=namespace, tokens=tokens, seconds=seconds)
        return self.pinned or Pinned(ticket=0, num_tokens=len(tokens) // 4, num_blocks=1)

    async def unpin(self, name: str) -> None:
        """Remembered."""
        self._called("unpin", name=name)

    async def nodes(self, tier: TierName, after: int, limit: int) -> NodePage:
        """The scripted page."""
        self._called("nodes", tier=tier, after=after, limit=limit)
        return self.page

    async def cache_events(self) -> AsyncGenerator[CacheEvents]:
        """The scripted events, and the engine's end or silence."""
        self._called("cache_events")
        for each in self.events:
            yield each
        if not self.dies_after_events:
            await self._closed.wait()
        raise EngineDied("the engine ended")

    async def wait_until_closed(self) -> None:
        """Returns when `close` was called."""
        await self._closed.wait()

    def calls_of(self, name: str) -> list[CacheCall]:
        """What was asked by one method, in order."""
        return [call for call in self.cache_calls if call.name == name]

    async def close(self) -> None:
        """End what stalls, as an engine that shuts down does."""
        self._closed.set()

    async def stats(self) -> EngineStats:
        """What a test may look at; the rest is zero."""
        return EngineStats(
            num_running=self.num_running,
            num_waiting=0,
            num_blocks=self.info.num_blocks,
            num_free_blocks=self.info.num_blocks,
            num_cached_blocks=0,
            num_held_blocks=0,
            kv_waste=0.0,
            num_steps=0,
            num_prompt_tokens=0,
            num_cached_tokens=0,
            num_computed_prompt_tokens=0,
            num_generated_tokens=0,
            num_preemptions=0,
            num_finished=0,
            num_aborted=self.num_aborted,
            num_evicted_blocks=0,
            num_copied_blocks=0,
            kv_waste_mean=0.0,
            kv_waste_max=0.0,
        )

    @property
    def prompts(self) -> list[list[int]]:
        """The token ids of every prompt so far."""
        return [array("i", submit.prompt).tolist() for submit in self.submits]

    def _called(self, method: str, **arguments: Any) -> None:
        self.cache_calls.append(CacheCall(method, arguments))
        if self.cache_failure is not None:
            raise self.cache_failure


def _moved() -> Moved:
    return Moved(
        ticket=0,
        num_device_tokens=16,
        num_host_tokens=0,
        num_disk_tokens=8,
        num_to_compute=4,
        num_parked_tokens=24,
        num_moved_blocks=2,
        num_moved_bytes=4096,
        seconds=0.0125,
    )
