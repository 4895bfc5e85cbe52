"""Settings: where values come from, and what stops the start."""

from pathlib import Path

import pytest

from gateway.settings import ApiKey, BadSettings, Settings, load_settings, parse_bytes

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
