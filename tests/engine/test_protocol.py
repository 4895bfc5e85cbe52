"""An engine of another version does not start, rather than to misunderstand its gateway."""

import subprocess
import sys
from pathlib import Path

import msgspec

from engine.messages import EngineConfig
from engine.protocol import protocol_digest


def failure_of(protocol: str, folder: Path) -> bytes:
    """Start the engine's program on a model that is not there: what it ends with."""
    config = msgspec.json.encode(EngineConfig(model=str(folder / "none"))) + b"\n"
    command = [sys.executable, "-P", "-m", "engine", f"ipc://{folder}/engine.sock", protocol]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(config)
        process.stdin.flush()  # it stays open, as a parent's that lives
        said = process.stderr.read()
        assert process.wait(60) == 1
    return said


def test_an_engine_that_speaks_other_messages_does_not_start(tmp_path: Path) -> None:
    assert b"another version than the gateway" in failure_of("0" * 32, tmp_path)
    assert b"none" in failure_of(protocol_digest(), tmp_path), "it went on to look for the model"
