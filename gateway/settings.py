"""All that an operator can choose, as one tree of frozen values.

Flags win over the environment (`STEMMA_SERVER__PORT=9000`), the environment over the TOML file that
`--config` names, and that over the defaults below. This is the only module that reads the environment. A
name that nobody knows stops the start, with its path.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from engine.messages import EngineConfig, Quota

__all__ = [
    "ApiKey",
    "BadSettings",
    "CacheSettings",
    "ConversationSettings",
    "DatabaseSettings",
    "EngineSettings",
    "LogSettings",
    "ModelSettings",
    "ServerSettings",
    "Settings",
    "TenantSettings",
    "load_settings",
    "parse_bytes",
]

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_PREFIX = "STEMMA_"
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class BadSettings(Exception):
    """The settings cannot be used; the message says which and why, a line each."""


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
    block_size: int = Field(16, ge=1, le=256)
    kv_bytes: Bytes = 1 << 30
    max_context: int | None = Field(None, ge=1)
    max_batch_tokens: int = Field(256, ge=1)
    max_sequences: int = Field(64, ge=1)
    num_threads: int | None = Field(None, ge=1)


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
    """What one tenant may keep, and what it may have, of the device's blocks."""

    name: str = Field(min_length=1, max_length=200)
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


class Settings(BaseSettings):
    """The tree. `load_settings` builds it; tests may build it from arguments alone."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    data: Path = Path("data")
    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    cache: CacheSettings = CacheSettings()
    conversation: ConversationSettings = ConversationSettings()
    database: DatabaseSettings = DatabaseSettings()
    log: LogSettings = LogSettings()
    keys: tuple[ApiKey, ...] = ()
    tenants: tuple[TenantSettings, ...] = ()

    @model_validator(mode="after")
    def _open_only_at_home(self) -> "Settings":
        if not self.keys and not self.server.is_loopback:
            raise ValueError(
                f"without API keys only this machine may be served, and server.host is {self.server.host}. "
                "Add [[keys]] to the configuration, or use 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _one_tenant_a_key(self) -> "Settings":
        known = {key.key.get_secret_value() for key in self.keys}
        if len(known) < len(self.keys):
            raise ValueError("keys: the same key stands twice; a key names one tenant")
        return self

    @model_validator(mode="after")
    def _one_quota_a_tenant(self) -> "Settings":
        names = [tenant.name for tenant in self.tenants]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"tenants: {', '.join(sorted(twice))} stands twice; a tenant has one quota")
        known = {key.tenant for key in self.keys} or {"default"}
        if unknown := set(names) - known:
            raise ValueError(f"tenants: no key names {', '.join(sorted(unknown))}, so nobody has that quota")
        return self

    @property
    def database_url(self) -> str:
        """The database to use, given or in the data folder."""
        return self.database.url or f"sqlite+aiosqlite:///{self.data.absolute() / 'stemma.sqlite3'}"

    def engine_config(self, model_path: Path, account: Callable[[str], bytes]) -> EngineConfig:
        """What the engine is started with. `account` gives the account that a tenant's blocks count to."""
        cache = self.cache
        return EngineConfig(
            model=str(model_path),
            **self.engine.model_dump(),
            **cache.model_dump(exclude={"disk", "park_after"}),
            disk_folder=str(self.data.absolute() / "kv") if cache.disk else None,
            park_after=cache.park_after or None,
            quotas={
                account(tenant.name).hex(): Quota(
                    floor_blocks=tenant.floor_blocks, ceiling_blocks=tenant.ceiling_blocks
                )
                for tenant in self.tenants
            },
        )


def load_settings(config: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Read every source. `flags` is nested like the tree. Raises BadSettings."""
    _refuse_unknown_environment()
    from_file = _read_toml(config) if config is not None else {}

    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, from_file)

    try:
        return Sourced(**flags)
    except ValidationError as error:
        raise BadSettings("\n".join(_complaints(error))) from None
    except SettingsError as error:
        raise BadSettings(str(error)) from None


def _complaints(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, item['loc'])) or 'settings'}: {_complaint(item)}"
        for item in error.errors(include_url=False, include_input=False)
    ]


def _complaint(item: ErrorDetails) -> str:
    match item["type"]:
        case "extra_forbidden":
            return "there is no such setting; configs/default.toml lists them all"
        case "tuple_type":
            return "must be a list"
        case "too_short" | "string_too_short":
            return f"must have at least {item['ctx']['min_length']} characters"
        case _:
            return item["msg"].removeprefix("Value error, ")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: {error}") from None


def _refuse_unknown_environment() -> None:
    """pydantic-settings skips variables whose first word is no section; a misspelt one would go unnoticed."""
    for name in os.environ:
        if not name.upper().startswith(_PREFIX):
            continue
        section = name[len(_PREFIX) :].split("__")[0].lower()
        if "__" in name and section not in Settings.model_fields:
            raise BadSettings(f"{name}: there is no section {section!r}")
        if "__" not in name and section.split("_")[0] in Settings.model_fields and "_" in section:
            raise BadSettings(f"{name}: separate section and name by two underscores")
