"""Settings: where values come from, and what stops the start."""

from pathlib import Path

import pytest

from engine.messages import EngineConfig, Quota
from gateway.setting_sections import ApiKey, parse_bytes
from gateway.settings import BadSettings, Settings, load_settings

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_configuration_file_loads(path: Path) -> None:
    assert load_settings(path, {}).server.port == 8000


def test_the_default_file_says_what_the_code_does() -> None:
    assert load_settings(CONFIGS / "default.toml", {}).model_dump() == Settings().model_dump()


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[server]\nport = 1\nping_seconds = 3.0\ndrain_seconds = 4.0\n")
    monkeypatch.setenv("STEMMA_SERVER__PORT", "2")
    monkeypatch.setenv("STEMMA_SERVER__PING_SECONDS", "5")

    server = load_settings(path, {"server": {"port": 9}}).server

    assert (server.port, server.ping_seconds, server.drain_seconds) == (9, 5.0, 4.0)


def test_a_misspelt_key_in_the_file_is_named_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[engine]\nblok_size = 16\n")

    with pytest.raises(BadSettings, match=r"engine\.blok_size"):
        load_settings(path, {})


@pytest.mark.parametrize("name", ["STEMMA_ENGINE__BLOK_SIZE", "STEMMA_ENGIN__DEVICE", "STEMMA_SERVER_PORT"])
def test_a_misspelt_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")

    with pytest.raises(BadSettings, match=r"(?i)" + name.removeprefix("STEMMA_").replace("__", "(__|.)")):
        load_settings(None, {})


def test_a_missing_or_broken_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[server")

    for name in ("none.toml", "broken.toml"):
        with pytest.raises(BadSettings, match=name):
            load_settings(tmp_path / name, {})


@pytest.mark.parametrize(
    ("text", "expected"), [("1GiB", 1 << 30), ("1.5 MiB", 3 << 19), ("512", 512), ("2kib", 2048), (7, 7)]
)
def test_sizes_may_have_units(text: object, expected: int) -> None:
    assert parse_bytes(text) == expected


def test_a_size_with_an_unknown_unit_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"engine\.kv_bytes.*1GiB"):
        load_settings(None, {"engine": {"kv_bytes": "1 gigabyte"}})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_without_keys_only_this_machine_is_served(host: str) -> None:
    key = ApiKey.model_validate({"key": "k" * 16, "tenant": "a"})

    assert Settings.model_validate({"server": {"host": host}, "keys": [key]}).server.host == host
    with pytest.raises(BadSettings, match="API keys"):
        load_settings(None, {"server": {"host": host}})


def test_a_key_never_shows_in_what_is_printed() -> None:
    key = ApiKey.model_validate({"key": "secret-secret-secret", "tenant": "a"})

    assert "secret-secret" not in repr(key)


def test_a_key_names_one_tenant(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("".join(f'[[keys]]\nkey = "{"k" * 16}"\ntenant = "{tenant}"\n' for tenant in "ab"))

    with pytest.raises(BadSettings, match="twice"):
        load_settings(path, {})


def test_complaints_are_in_an_operators_words(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[server]\nprot = 1\ncors_origins = "x"\n[[keys]]\nkey = "short"\ntenant = "a"\n')

    with pytest.raises(BadSettings) as refused:
        load_settings(path, {})

    assert str(refused.value).splitlines() == [
        "server.cors_origins: must be a list",
        "server.prot: there is no such setting; configs/default.toml lists them all",
        "keys.0.key: must have at least 16 characters",
    ]


def engine_config(**sections: object) -> EngineConfig:
    return Settings.model_validate({"data": "/d"} | sections).engine_config(Path("m"), str.encode)


def test_the_cache_goes_to_the_engine_as_it_was_chosen() -> None:
    default = engine_config()
    chosen = engine_config(
        cache={
            "host_bytes": "2GiB",
            "disk_bytes": "1GiB",
            "disk_for_all": True,
            "park_after": 5,
            "swap": "never",
            "eviction": "learned",
        }
    )

    assert (default.host_bytes, default.disk_folder, default.disk_bytes) == (0, "/d/kv", 4 << 30)
    assert (default.disk_for_all, default.park_after, default.swap, default.eviction) == (
        False,
        600.0,
        "auto",
        "lru",
    )
    assert (chosen.host_bytes, chosen.disk_bytes, chosen.disk_for_all) == (2 << 30, 1 << 30, True)
    assert (chosen.park_after, chosen.swap, chosen.eviction) == (5.0, "never", "learned")


def test_a_tier_may_be_left_out_and_parking_too() -> None:
    config = engine_config(cache={"disk": False, "park_after": 0})

    assert (config.disk_folder, config.park_after) == (None, None)


def test_quotas_are_named_by_account() -> None:
    tenants = [{"name": "a", "floor_blocks": 2, "ceiling_blocks": 2}, {"name": "b", "ceiling_blocks": 9}]

    keys = [{"key": name * 16, "tenant": name} for name in "ab"]

    quotas = engine_config(tenants=tenants, keys=keys).quotas

    assert quotas == {
        "61": Quota(floor_blocks=2, ceiling_blocks=2),
        "62": Quota(floor_blocks=0, ceiling_blocks=9),
    }


def test_how_steps_and_queues_go_is_the_engines_own_default() -> None:
    assert engine_config() == EngineConfig(model="m", disk_folder="/d/kv")


def test_the_engines_settings_go_to_it_as_they_were_chosen() -> None:
    chosen = {
        "target_step_seconds": 0.05,
        "max_waiting": 7,
        "max_waiting_tokens": 99,
        "max_wait_seconds": 1.5,
        "products": "packed",
        "deterministic": True,
        "speculation": "draft",
        "draft_layers": 4,
        "max_lookahead": 3,
        "max_batch_tokens": 64,
        "device": "cuda",
        "memory_utilization": 0.8,
    }

    config = engine_config(engine=chosen)

    assert {name: getattr(config, name) for name in chosen} == chosen


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ({"draft_layers": 4}, 'draft_layers needs speculation = "draft"'),
        ({"draft_model": "x", "speculation": "ngram"}, 'draft_model needs speculation = "draft".*"ngram"'),
        ({"speculation": "draft"}, "needs draft_model.*or draft_layers"),
        ({"speculation": "medusa"}, "engine.speculation"),
        ({"max_lookahead": 0}, "engine.max_lookahead"),
        ({"target_step_seconds": 0}, "engine.target_step_seconds"),
        ({"max_wait_seconds": float("nan")}, "engine.max_wait_seconds"),
        ({"max_waiting": 0}, "engine.max_waiting"),
        ({"products": "int4"}, "engine.products"),
        ({"max_sequences": 9, "max_batch_tokens": 8}, "max_sequences is 9.*raise max_batch_tokens"),
        ({"deterministic": "sometimes"}, "engine.deterministic"),
        ({"memory_utilization": 0.9}, 'memory_utilization.*"cpu".*kv_bytes'),
        ({"memory_utilization": 1.1, "device": "cuda"}, "engine.memory_utilization"),
    ],
)
def test_what_the_engine_cannot_do_stops_the_start(engine: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadSettings, match=complaint):
        load_settings(None, {"engine": engine})


def test_weights_are_named_by_account() -> None:
    keys = [{"key": name * 16, "tenant": name} for name in "ab"]

    config = engine_config(tenants=[{"name": "a", "weight": 2.5}, {"name": "b"}], keys=keys)

    assert config.weights == {"61": 2.5, "62": 1.0}


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "heavy"])
def test_a_weight_is_a_number_above_zero(weight: object) -> None:
    with pytest.raises(BadSettings, match=r"tenants\.0\.weight"):
        load_settings(
            None,
            {"tenants": [{"name": "a", "weight": weight}], "keys": [{"key": "k" * 16, "tenant": "a"}]},
        )


@pytest.mark.parametrize(
    ("tenants", "complaint"),
    [
        ([{"name": "alice", "floor_blocks": 3, "ceiling_blocks": 2}], "tenants.0: floor_blocks of .*alice"),
        ([{"name": "alice"}, {"name": "alice"}], "alice stands twice"),
        ([{"name": "alcie"}], "tenants: no key names alcie"),
        ([{"name": "alice", "floor": 1}], "tenants.0.floor: there is no such setting"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_by_name(tenants: list[object], complaint: str) -> None:
    with pytest.raises(BadSettings, match=complaint):
        load_settings(None, {"tenants": tenants, "keys": [{"key": "k" * 16, "tenant": "alice"}]})


@pytest.mark.parametrize("name", ["host_bytes", "disk_bytes"])
def test_a_size_of_the_cache_is_checked(name: str) -> None:
    with pytest.raises(BadSettings, match=f"cache.{name}"):
        load_settings(None, {"cache": {name: "-1"}})
