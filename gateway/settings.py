"""All that an operator can choose, as one tree of frozen values.

Flags win over the environment (`STEMMA_SERVER__PORT=9000`), the environment over the TOML file that
`--config` names, and that over the defaults in `setting_sections`. This is the only module that reads the
environment. A name that nobody knows stops the start, with its path.
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from engine.messages import EngineConfig, Quota
from gateway.setting_sections import (
    ApiKey,
    CacheSettings,
    ConversationSettings,
    DatabaseSettings,
    EngineSettings,
    LogSettings,
    ModelSettings,
    ServerSettings,
    TenantSettings,
)

__all__ = ["BadSettings", "Settings", "load_settings"]

_PREFIX = "STEMMA_"


class BadSettings(Exception):
    """The settings cannot be used; the message says which and why, a line each."""


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
            weights={account(tenant.name).hex(): tenant.weight for tenant in self.tenants},
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
