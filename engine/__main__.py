"""The engine as a process of its own: `python -m engine ADDRESS`.

An EngineConfig comes as one line of JSON on standard input, which stays open for as long as the parent lives:
when it closes, this process ends at once, whatever it was doing.
"""

import os
import sys
import threading

import msgspec
import zmq

from engine.core import CacheOptions, EngineCore
from engine.memory import release_unused
from engine.messages import EngineConfig
from engine.runner import load_runner, load_tiers
from engine.scheduler import Limits
from engine.service import EngineService
from prefix_cache.quota import Account


def main() -> None:
    """Load the model and serve it until standard input closes."""
    address = sys.argv[1]
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_end_with_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    try:
        runner = load_runner(config)
        core = EngineCore(
            runner,
            Limits(config.max_batch_tokens, config.max_sequences),
            tiers=load_tiers(config, runner),
            options=_cache_options(config),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the user is told in one line
        sys.exit(f"stemma: the engine cannot start: {error}")
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what its queue cannot hold; events must not be lost
    socket.bind(address)
    release_unused()
    EngineService(core, socket, on_rest=release_unused).run(threading.Event())


def _cache_options(config: EngineConfig) -> CacheOptions:
    return CacheOptions(
        disk_for_all=config.disk_for_all,
        park_after=config.park_after,
        swap=config.swap,
        eviction=config.eviction,
        quotas={Account(bytes.fromhex(account)): quota for account, quota in config.quotas.items()},
    )


def _end_with_parent(lifeline: int) -> None:
    # Read past Python's buffer: its lock, held by a thread, would make the interpreter's own end a crash.
    while os.read(lifeline, 4096):
        pass
    os._exit(0)  # a step may hold the main thread for a while; nobody is left to read its result


if __name__ == "__main__":
    main()
