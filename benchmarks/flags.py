"""The values of flags, for argparse: what cannot be meant is refused in words before anything is measured."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.load.connections import Address

__all__ = ["amount", "api_url", "json_object", "natural", "output_file", "output_folder", "positive", "rate"]


def positive(text: str) -> int:
    """A whole number above 0."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0 up."""
    return _whole(text, 0)


def rate(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def amount(text: str) -> float:
    """A number from 0 up."""
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def api_url(text: str) -> str:
    """Where an API is, without a slash at its end."""
    try:
        Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.rstrip("/")


def json_object(text: str) -> dict[str, Any]:
    """Fields of a body."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object")
    return fields


def output_file(text: str) -> Path:
    """Where a file can be written. None is made yet, so that a run which fails leaves none."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: name a file")
    output_folder(str(path.parent))
    if path.exists() and not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} may not be written")
    return path


def output_folder(text: str) -> Path:
    """A folder in which files can be made."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"nothing may be written to the folder {path}")
    return path


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number") from None
