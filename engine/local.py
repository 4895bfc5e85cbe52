"""An engine put together from one config: model, tiers, and the core over them.

Owns the order in which they are made. The core's steps run on the thread that called, unless a stepper is
made for another.
"""

from collections.abc import Callable

from engine.core import CoreOptions, EngineCore
from engine.loading import load_runner, load_tiers
from engine.messages import EngineConfig
from engine.pace import StepPace
from engine.scheduler import Limits
from engine.speculation.length import LookaheadPolicy
from engine.step import Step, StepResult
from engine.stepping import InlineStepper, Stepper
from prefix_cache.quota import Account

__all__ = ["load_core"]

_MEASURED_STEPS = (1, 8, 32, 128)  # tokens; larger ones are measured as they come


def load_core(
    config: EngineConfig,
    make_stepper: Callable[[Callable[[Step], StepResult]], Stepper] = InlineStepper,
) -> EngineCore:
    """Load the model, take the memory of every tier, and measure what steps take.

    Raises ValueError or OSError when the model cannot be loaded or run, or a tier cannot be had.
    """
    runner = load_runner(config)
    tiers = load_tiers(config, runner)
    measured = runner.measure_steps([each for each in _MEASURED_STEPS if each <= config.max_batch_tokens])
    pace = StepPace(config.target_step_seconds, measured)
    lookahead = None
    if config.speculation != "off":
        lookahead = LookaheadPolicy(
            pace.seconds, max_tokens=config.max_lookahead, proposal_seconds=runner.proposal_seconds
        )
    return EngineCore(
        runner,
        Limits(
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            max_waiting=config.max_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            max_wait_seconds=config.max_wait_seconds,
        ),
        tiers=tiers,
        options=_core_options(config),
        stepper=make_stepper(runner.run),
        pace=pace,
        lookahead=lookahead,
        grammars=runner.grammars,
    )


def _core_options(config: EngineConfig) -> CoreOptions:
    return CoreOptions(
        disk_for_all=config.disk_for_all,
        park_after=config.park_after,
        swap=config.swap,
        eviction=config.eviction,
        quotas={Account(bytes.fromhex(account)): quota for account, quota in config.quotas.items()},
        weights={Account(bytes.fromhex(account)): weight for account, weight in config.weights.items()},
    )
