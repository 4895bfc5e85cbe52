"""What an engine has done since its start, as the scheduler counts it."""

from dataclasses import dataclass, field

from prefix_cache.plan import Tier

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    num_beam_forks: int = 0
    num_found_tokens: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
