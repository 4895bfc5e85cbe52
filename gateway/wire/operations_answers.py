"""What operators are told, and the error object that everybody may be told."""

from typing import Any, Literal

import msgspec

__all__ = ["ErrorAnswer", "ErrorObject", "Health", "Index", "Sample", "Samples", "Version"]


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, and where in the request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every refusal and failure."""

    error: ErrorObject


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What is served here."""

    name: str
    version: str
    models: list[str]
    endpoints: list[str]


class Version(msgspec.Struct, frozen=True):
    """Which server this is."""

    version: str


class Health(msgspec.Struct, frozen=True):
    """Whether requests are served."""

    status: Literal["ok", "loading", "draining"]


class Sample(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    labels: dict[str, str]
    value: Any  # a number; null for one that JSON has not


class Samples(msgspec.Struct, frozen=True):
    """Figures as of now."""

    samples: list[Sample]
