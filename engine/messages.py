"""Everything that crosses the border between the gateway's process and the engine's, and nothing else."""

from typing import Literal

import msgspec

from engine.cache_messages import CacheAnswer, CacheEvents, CacheMessage, CacheReport, TierName, Watch
from engine.info import EngineInfo
from engine.sequence import BeamParams, FinishReason, SamplingParams
from engine.vocabulary import Vocabulary
from prefix_cache.quota import Quota

__all__ = [
    "Abort",
    "Accepted",
    "BeamParams",
    "EngineConfig",
    "EngineInfo",
    "EngineStats",
    "FinishReason",
    "FromEngine",
    "GetProgress",
    "GetStats",
    "Hello",
    "HistogramStats",
    "MoveStats",
    "Progress",
    "Quota",
    "Ready",
    "Refused",
    "Stats",
    "Submit",
    "TierStats",
    "ToEngine",
    "TokenEvent",
    "TokenEvents",
    "TokenLogprob",
    "Vocabulary",
]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is started with."""

    model: str  # a GGUF file, or a folder with config.json and safetensors
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of weights, activations and KV
    vocabulary: str | None = None  # a file of `engine.vocabulary`; without one there are no grammars
    block_size: int = 16  # token slots
    kv_bytes: int = 1 << 30
    memory_utilization: float | None = None  # of a GPU's memory, all together; takes the place of kv_bytes
    max_context: int | None = None  # tokens; None: what the model was trained for
    max_batch_tokens: int = 512  # a step computes at most this many
    target_step_seconds: float = 0.25  # of a step in which answers grow: chunks of prompts are cut to it
    max_sequences: int = 64  # running at once
    max_waiting: int = 512  # requests of one tenant that may wait
    max_waiting_tokens: int = 1 << 20  # their prompts' tokens together
    max_wait_seconds: float = 300.0  # a request that has not begun by then is refused
    num_threads: int | None = None  # None: one for each core that the process may use
    host_bytes: int = 0  # memory of the host tier; 0: none
    disk_folder: str | None = None  # where the disk tier keeps its files; None: there is no disk tier
    disk_bytes: int = 4 << 30  # files of the disk tier together
    disk_for_all: bool = False  # whether conversations that nobody stored may go to the disk too
    park_after: float | None = 600.0  # seconds of rest before a conversation leaves the device; None: never
    swap: Literal["auto", "always", "never"] = "auto"  # bring colder blocks back, or compute them again
    eviction: Literal["lru", "learned"] = "lru"
    quotas: dict[str, Quota] = {}  # by account, in hexadecimal digits
    weights: dict[str, float] = {}  # by account: its share of the computing against others'; 1 if not named
    products: Literal["auto", "full", "int8", "packed"] = "auto"
    """Matrix products: in `dtype`; with weights of 8 bits and inputs of 15, exact; or with the weights as the
    file has them, 4 or 8 bits, and inputs of 8. "auto" is "int8" for bfloat16 on a CPU that
    multiplies bytes (AVX-512 VNNI), else "full".
    """
    kv_dtype: Literal["auto", "full", "int8"] = "auto"
    """Keys and values: in `dtype`, or in 8 bits with a step for each token's of each head, on a CPU. "auto"
    is "int8" where `products` are and the heads' dimensions allow it, else "full".
    """
    deterministic: bool = False  # a sequence's logits do not depend on its company, bit for bit
    speculation: Literal["off", "ngram", "draft"] = "off"
    draft_model: str | None = None  # None: the model itself, cut to `draft_layers`
    draft_layers: int | None = None  # None: all of them
    max_lookahead: int = 8  # tokens proposed for one sequence and step


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one tier, as of the last step, and what it gave up since the start."""

    num_blocks: int
    num_free: int
    num_cached: int  # findable, held by nobody
    num_held: int
    num_evicted: int


class MoveStats(msgspec.Struct, frozen=True, kw_only=True):
    """What moved from one tier to another since the start."""

    source: TierName
    target: TierName
    num_blocks: int = 0
    num_bytes: int = 0
    seconds: float = 0.0  # of work, without waiting
    num_failed: int = 0  # transfers that ended early


class HistogramStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts between bounds in seconds, the last of everything above; and the sum of what was counted."""

    bounds: list[float]
    counts: list[int]
    total: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's figures. Counters count from its start; gauges are as of the last step."""

    # gauges
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int  # findable, held by nobody
    num_held_blocks: int
    kv_waste: float  # 1 - tokens held / slots allocated, over held blocks; 0 when none is held
    # counters
    num_steps: int
    num_prompt_tokens: int  # of admitted requests
    num_cached_tokens: int  # prompt tokens found in the cache
    num_computed_prompt_tokens: int  # prompt tokens computed, preempted work included
    num_generated_tokens: int
    num_preemptions: int
    num_finished: int  # sequences
    num_aborted: int  # sequences
    num_evicted_blocks: int
    num_copied_blocks: int
    kv_waste_mean: float  # over steps
    kv_waste_max: float
    # the tiers
    num_found_tokens: dict[TierName, int] = {}  # prompt tokens by the tier where they were found
    num_loading: int = 0  # sequences whose blocks are on their way; of num_running
    num_pinned_blocks: int = 0
    num_waiting_writes: int = 0  # prefixes that wait for a colder tier
    num_promoted_tokens: int = 0
    num_recomputed_tokens: int = 0  # that a colder tier had, and that were cheaper to compute again
    num_damaged_blocks: int = 0  # of the disk, found out and removed
    num_parked: int = 0  # conversations that left the device because they rested
    is_disk_usable: bool = False
    tiers: dict[TierName, TierStats] = {}
    moves: list[MoveStats] = []
    rates: dict[str, float] = {}  # bytes a second by "source>target", and "prefill" in tokens a second
    ages: dict[str, HistogramStats] = {}  # lifetime, idle_before_evict, reuse_gap: of the device's blocks
    # what runs together
    num_saved_blocks: int = 0  # more that running sequences would hold if none shared any
    saved_share_mean: float = 0.0  # over steps: saved / (held + saved)
    step_budget: int = 0  # tokens that a step may compute while answers grow, as measured
    num_beam_forks: int = 0  # hypotheses that went on from another's blocks
    num_proposed_tokens: int = 0  # by speculation
    num_accepted_tokens: int = 0  # of those
    num_queue_full: int = 0  # requests refused because too much of their tenant's waited
    num_waited_too_long: int = 0  # requests refused because they did not begin in time


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Answer with Ready once requests are served."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run a request: `num_choices` sequences over one prompt."""

    request_id: str
    prompt: bytes  # token ids, packed int32 in the machine's order
    sampling: SamplingParams
    namespace: bytes  # the part of the tree that the request may see
    num_choices: int = 1  # with `sampling.beam`: how many of the best hypotheses are wanted
    queue_priority: int = 0  # among the requests of one tenant, lower ones start first
    is_side: bool = False  # leaves no trace: nothing is refreshed, and nothing that it computes is kept
    persists: bool = False  # belongs to a stored conversation: its keys and values may go to the disk
    priority: int = 0  # of its blocks against eviction: lower ones go first


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget a request, or one of its choices. Unknown ids are ignored: the request may just have ended."""

    request_id: str
    choice: int | None = None


class GetStats(msgspec.Struct, frozen=True, tag=True):
    """Answer with Stats that carry the same ticket."""

    ticket: int


class GetProgress(msgspec.Struct, frozen=True, tag=True):
    """Answer with Progress that carries the same ticket."""

    ticket: int
    request_id: str


ToEngine = Hello | Submit | Abort | GetStats | GetProgress | CacheMessage | Watch


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of a generated token, and of the best ones at its place, best first."""

    logprob: float
    top: list[tuple[int, float]]


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """News of one choice. The token that ended it is in `stop_token_id`, never in `token_ids`.

    Log-probabilities of the prompt come in order, on events of choice 0 before or with its first token. A
    beam search tells each hypothesis in one event, the best as choice 0.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None  # one for each of token_ids, when asked for
    finish_reason: FinishReason | None = None  # set on the last event of the choice
    stop_token_id: int | None = None
    num_cached_tokens: int = 0  # of the prompt, found in the cache when the request first ran
    cache: CacheReport | None = None  # on the first event of a choice
    prompt_logprobs: list[TokenLogprob] | None = None  # of the prompt's next tokens, from its second on


class TokenEvents(msgspec.Struct, frozen=True, tag=True):
    """The events of one step."""

    events: list[TokenEvent]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request was not, or is no longer, run; no further event of it follows."""

    request_id: str
    message: str
    kind: Literal["refused", "grammar", "failed", "stopping", "queue_full", "waited_too_long"]
    retry_after: float | None = None  # seconds; of the last two kinds


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The request is queued: unless it is refused later, events follow."""

    request_id: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; requests are served from now on."""

    info: EngineInfo


class Stats(msgspec.Struct, frozen=True, tag=True):
    """The answer to GetStats."""

    ticket: int
    stats: EngineStats


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How much of a request's prompt is there, found or computed; all of it once the answer grows, and none
    of what is not known, or waits.
    """

    ticket: int
    num_prompt_tokens: int


FromEngine = Ready | Accepted | TokenEvents | Refused | Stats | Progress | CacheAnswer | CacheEvents
