"""How log lines are written: to standard error, one event a line, in one of two formats.

Text that the terminal cannot show is escaped, so no line can fail to be written.
"""

import io
import logging
import sys
from typing import Literal

import structlog

__all__ = ["configure_logs"]


def configure_logs(style: Literal["console", "json"]) -> None:
    """Set structlog up for the process. Called once, before the first line."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
