"""The engine as a process of its own: `python -m engine ADDRESS PROTOCOL`.

PROTOCOL is the digest of the messages that the parent speaks; an engine that speaks others does not start.

An EngineConfig comes as one line of JSON on standard input, which stays open for as long as the parent lives:
when it closes, this process ends at once, whatever it was doing.
"""

import os
import sys
import threading

import msgspec
import zmq

from engine.local import load_core
from engine.memory import release_unused
from engine.messages import EngineConfig
from engine.protocol import protocol_digest
from engine.service import EngineService
from engine.stepping import StepThread, ThreadStepper


def main() -> None:
    """Load the model and serve it until standard input closes."""
    address, protocol = sys.argv[1:]
    if protocol != protocol_digest():
        sys.exit("stemma: the engine cannot start: it is of another version than the gateway; install again")
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_end_with_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    steps = StepThread()
    try:
        # Compiled kernels keep to the thread that loads them.
        core = steps.call(lambda: load_core(config, lambda run: ThreadStepper(steps, run)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the user is told in one line
        steps.close()
        sys.exit(f"stemma: the engine cannot start: {error}")
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what its queue cannot hold; events must not be lost
    socket.bind(address)
    release_unused()
    EngineService(core, socket, wake=steps, on_rest=release_unused).run(threading.Event())


def _end_with_parent(lifeline: int) -> None:
    # Read past Python's buffer: its lock, held by a thread, would make the interpreter's own end a crash.
    while os.read(lifeline, 4096):
        pass
    os._exit(0)  # a step may hold another thread for a while; nobody is left to read its result


if __name__ == "__main__":
    main()
