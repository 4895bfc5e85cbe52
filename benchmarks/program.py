"""How a bench runs as a program: what it started is ended on every way out, a user's mistake is one line."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

__all__ = ["run"]

_INTERRUPTED = 128 + signal.SIGINT


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run it, and leave with its exit code. A signal that asks to end unwinds it, as an interrupt does.

    Whoever cannot be read, written or loaded is the user's to mend: one line, and exit code 1.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:
        # Who reads has left. Nothing more can be said, not even by the interpreter when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (OSError, ValueError) as error:
        print(f"{_name()}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    raise SystemExit(code)


def _name() -> str:
    return os.path.basename(sys.argv[0]).removesuffix(".py").replace("_", "-")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
