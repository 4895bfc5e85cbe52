"""One stream of token ids, and what its owner asked of the sampler.

A request with `n=3` becomes three sequences. The scheduler moves a sequence through its states; the runner
only reads.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from prefix_cache.lease import PLAIN, Explanation, Lease, Retention
from prefix_cache.plan import BlockId
from prefix_cache.quota import Account, account_of

__all__ = [
    "MAX_BEAM_WIDTH",
    "MAX_TOP_LOGPROBS",
    "BeamParams",
    "FinishReason",
    "SamplingParams",
    "Sequence",
    "Status",
]

FinishReason = Literal["stop", "length"]

MAX_TOP_LOGPROBS = 20  # the protocol's limit for top_logprobs
MAX_BEAM_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How to search for the likeliest answers instead of drawing one."""

    width: int  # hypotheses that are followed at once; 1 is greedy
    length_penalty: float = 1.0  # a hypothesis scores the sum of its log-probabilities / length ** this
    early_stopping: bool | Literal["never"] = False
    """When `width` hypotheses have ended: True stops there; False stops if no other looks likelier by what it
    scores now; "never" only if none can score higher whatever follows.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens, and when to stop. All values are final: defaults are resolved before."""

    max_tokens: int  # 0: nothing is drawn; the prompt is computed, and weighed if that is asked
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None  # None: the whole vocabulary
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    repetition_penalty: float = 1.0  # over prompt and generated tokens; 1 is none
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added to its logit
    logprobs: int | None = None  # None: none; k: the drawn token's, and the k best
    prompt_logprobs: int | None = None  # the same for every prompt token but the first
    beam: BeamParams | None = None  # set: nothing is drawn, and temperature and filters say nothing
    min_tokens: int = 0  # stop tokens cannot be drawn before this many
    stop_token_ids: tuple[int, ...] = ()  # drawing one ends the sequence; end-of-text ids are among them
    grammar: str | None = None  # that an answer follows: see engine/constraints.py
    seed: int = 0  # with choice and position it fixes every draw; any value of 64 bits, unsigned


class Status(Enum):
    """Where a sequence stands.

    WAITING    in the queue, holds no block
    LOADING    holds a lease whose blocks are on their way from a colder tier; no step computes it yet
    RUNNING    holds a lease on blocks; every step may compute some of its tokens
    FINISHED   ended by itself, by its owner or by an error; holds nothing
    """

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The tokens of one choice of one request. Mutated by the scheduler alone; compared by identity."""

    request_id: str
    choice: int
    tokens: "array[int]"  # typecode "i": the prompt, then what was drawn
    num_prompt_tokens: int
    sampling: SamplingParams
    namespace: bytes
    retention: Retention = PLAIN
    queue_priority: int = 0  # among its tenant's, lower ones start first
    order: int = 0  # of its request's arrival
    arrived: float = 0.0
    status: Status = Status.WAITING
    lease: Lease | None = None
    num_computed: int = 0  # tokens whose keys and values lie in the lease's blocks
    num_weighed: int = 0  # prompt tokens whose log-probabilities were told, the first one counted
    num_cached: int | None = None  # prompt tokens found in the cache when the request first ran
    explanation: Explanation | None = None  # of that
    num_overtaken: int = 0  # younger sequences of its tenant that started before it
    is_told: bool = False  # whether anything was told of it

    @property
    def account(self) -> Account:
        """Whose it is."""
        return account_of(self.namespace)

    @property
    def num_tokens(self) -> int:
        """Prompt and drawn tokens together."""
        return len(self.tokens)

    @property
    def num_drawn(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens that are there and not computed."""
        return len(self.tokens) - self.num_computed

    @property
    def has_begun(self) -> bool:
        """Whether it, or the choice that computes its prompt, has ever run."""
        return self.num_cached is not None

    @property
    def weighs_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be told: then nothing cached is of use."""
        is_asked = self.sampling.prompt_logprobs is not None and self.choice == 0
        return is_asked and max(self.num_weighed, 1) < self.num_prompt_tokens

    @property
    def held_lease(self) -> Lease:
        """The lease of a sequence that has one: until the step that computes it has landed."""
        assert self.lease is not None, "a sequence that waits holds nothing"
        return self.lease

    @property
    def block_table(self) -> list[BlockId]:
        """The blocks in order: the i-th holds tokens [i * block_size, (i + 1) * block_size)."""
        return self.held_lease.blocks
