"""What /v1/models answers."""

from typing import Literal

import msgspec

__all__ = ["Model", "ModelList"]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that requests may name."""

    id: str
    object: Literal["model"] = "model"
    created: int  # seconds since 1970
    owned_by: str = "stemma"
    max_model_len: int | None = None  # tokens of prompt and answer; null until the engine is ready


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]
