"""The sections of the settings: what each value is called, its range and its default."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

__all__ = [
    "ApiKey",
    "CacheSettings",
    "ConversationSettings",
    "DatabaseSettings",
    "EngineSettings",
    "LogSettings",
    "ModelSettings",
    "ServerSettings",
    "TenantSettings",
    "parse_bytes",
]

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: object) -> object:
    """Turn `"1.5GiB"` into bytes; leave what is not a string to the type's own check."""
    if not isinstance(value, str):
        return value
    parts = _SIZE.fullmatch(value)
    if parts is None or parts[2].upper() not in _UNITS:
        raise ValueError("write a size as a number of bytes or with a unit: 512MiB, 1GiB, 1.5GiB")
    return int(float(parts[1]) * _UNITS[parts[2].upper()])


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
BytesOrNone = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]  # 0: none


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServerSettings(_Section):
    """Where and how HTTP is served."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)  # 0: any free one
    cors_origins: tuple[str, ...] = ()  # pages that may call from a browser; "*" for all
    max_body_bytes: Bytes = 8 << 20
    ping_seconds: float = Field(15.0, gt=0)  # a comment keeps an idle stream's connection open
    send_timeout_seconds: float = Field(60.0, gt=0)  # a client that takes nothing for so long is let go
    drain_seconds: float = Field(30.0, ge=0)  # running requests may take this long after SIGTERM

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class ModelSettings(_Section):
    """Which model answers, and by which names."""

    path: str = "default"  # a GGUF file, a folder with safetensors, or "default"
    name: str | None = None  # None: from the path
    aliases: tuple[str, ...] = ()

    @property
    def served_name(self) -> str:
        """The name that /v1/models shows."""
        if self.name is not None:
            return self.name
        return DEFAULT_MODEL_NAME if self.path == "default" else Path(self.path).name.removesuffix(".gguf")


class EngineSettings(_Section):
    """The engine's process; `None` lets it choose."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    products: Literal["auto", "full", "int8", "packed"] = (
        "auto"  # in dtype, in 8 bits, or as the file has them
    )
    kv_dtype: Literal["auto", "full", "int8"] = "auto"  # keys and values: in dtype, or in 8 bits
    deterministic: bool = False  # answers do not depend, bit for bit, on who runs beside
    block_size: int = Field(16, ge=1, le=256)
    kv_bytes: Bytes = 1 << 30
    memory_utilization: float | None = Field(None, gt=0, le=1)  # of a GPU's memory; in place of kv_bytes
    max_context: int | None = Field(None, ge=1)
    max_batch_tokens: int = Field(512, ge=1)
    target_step_seconds: float = Field(0.25, gt=0)  # chunks of prompts are cut to it while answers grow
    max_sequences: int = Field(64, ge=1)
    max_waiting: int = Field(512, ge=1)  # requests of one tenant in the queue
    max_waiting_tokens: int = Field(1 << 20, ge=1)  # of their prompts
    max_wait_seconds: float = Field(300.0, gt=0)  # a request that has not begun by then is refused
    num_threads: int | None = Field(None, ge=1)
    speculation: Literal["off", "ngram", "draft"] = "off"
    draft_model: str | None = Field(None, min_length=1)  # None: the model itself, cut to draft_layers
    draft_layers: int | None = Field(None, ge=1)
    max_lookahead: int = Field(8, ge=1, le=64)  # tokens proposed for one sequence and step

    @model_validator(mode="after")
    def _a_token_for_each_sequence(self) -> "EngineSettings":
        if self.max_sequences > self.max_batch_tokens:
            raise ValueError(
                f"max_sequences is {self.max_sequences}, and each takes a token of every step, which has "
                f"{self.max_batch_tokens}; raise max_batch_tokens"
            )
        return self

    @model_validator(mode="after")
    def _a_share_of_a_gpus_memory(self) -> "EngineSettings":
        if self.memory_utilization is not None and self.device != "cuda":
            raise ValueError(
                f'memory_utilization is of a GPU, and device is "{self.device}": say kv_bytes instead'
            )
        return self

    @model_validator(mode="after")
    def _draft_where_it_is_used(self) -> "EngineSettings":
        given = [name for name in ("draft_model", "draft_layers") if getattr(self, name) is not None]
        if given and self.speculation != "draft":
            raise ValueError(f'{given[0]} needs speculation = "draft", and that is "{self.speculation}"')
        if not given and self.speculation == "draft":
            raise ValueError(
                'speculation = "draft" needs draft_model, a smaller model with the same vocabulary, or '
                "draft_layers, so many of the model's own first layers"
            )
        return self


class CacheSettings(_Section):
    """Where keys and values may lie beside the device's memory, and what leaves first."""

    host_bytes: BytesOrNone = 0
    disk: bool = True  # in the folder kv of the data folder
    disk_bytes: Bytes = 4 << 30
    disk_for_all: bool = False  # also conversations that belong to no session
    park_after: float = Field(600.0, ge=0)  # seconds of rest; 0: never
    swap: Literal["auto", "always", "never"] = "auto"  # bring colder blocks back, or compute them again
    eviction: Literal["lru", "learned"] = "lru"


class ConversationSettings(_Section):
    """What is remembered of conversations, how long a session may be waited for, and how much is kept."""

    transcript_bytes: Bytes = 64 << 20
    turn_wait_seconds: float = Field(30.0, gt=0)  # for the turn before it in the same session
    change_wait_seconds: float = Field(5.0, gt=0)  # for a turn that runs, to park, fork, pin or delete
    max_session_bytes: Bytes = 8 << 20  # of a session's messages
    max_sessions: int = Field(10_000, ge=1)  # of one tenant


class DatabaseSettings(_Section):
    """Where usage, sessions and shared prefixes are kept."""

    url: str | None = None  # None: SQLite in the data folder
    prefix_trace: bool = True  # names of a prompt's blocks with its usage: what `stemma simulate` replays


class LogSettings(_Section):
    """How log lines look."""

    format: Literal["console", "json"] = "console"


class ApiKey(_Section):
    """One key, and whose it is."""

    key: SecretStr = Field(min_length=16)
    tenant: str = Field(min_length=1, max_length=200)
    metrics: bool = False  # may read /metrics
    admin: bool = False  # may use everything under /admin/


class TenantSettings(_Section):
    """What one tenant may keep and may have of the device's blocks, and its share of the computing."""

    name: str = Field(min_length=1, max_length=200)
    weight: float = Field(1.0, gt=0, le=1000)  # twice another's is twice its share while both wait
    floor_blocks: int = Field(0, ge=0)  # kept from others' demands
    ceiling_blocks: int | None = Field(None, ge=1)  # never exceeded

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> "TenantSettings":
        if self.ceiling_blocks is not None and self.floor_blocks > self.ceiling_blocks:
            raise ValueError(
                f"floor_blocks of tenant {self.name!r} is {self.floor_blocks}, "
                f"more than its ceiling_blocks, {self.ceiling_blocks}"
            )
        return self
