"""Giving memory that nobody uses back to the system.

A step's temporaries come and go by the hundred megabytes, and the C library keeps what was freed for the
next. Where it can be asked to let go (glibc), an engine asks after loading and when it has rested.
"""

import ctypes
import sys

__all__ = ["release_unused"]

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def release_unused() -> None:
    """Return freed heap pages. They cost a fault each when they are needed again, so not between steps."""
    if _TRIM is not None:
        _TRIM(0)
