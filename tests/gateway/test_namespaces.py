"""Namespaces: stable, private, and never equal for two different askers."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.namespaces import Namespaces, load_secret

NAMESPACES = Namespaces(b"k" * 32)
NAMES = st.text(alphabet="a\x00\x01b", max_size=4)


@given(NAMES, NAMES | st.none(), NAMES, NAMES | st.none())
def test_two_askers_share_a_namespace_only_if_they_are_the_same(
    tenant: str, salt: str | None, other_tenant: str, other_salt: str | None
) -> None:
    same = (tenant, salt) == (other_tenant, other_salt)

    assert (NAMESPACES.of(tenant, salt) == NAMESPACES.of(other_tenant, other_salt)) == same


def test_the_secret_decides_the_namespace_and_does_not_show() -> None:
    assert NAMESPACES.of("a") != Namespaces(b"x" * 32).of("a")
    assert "kkkk" not in repr(NAMESPACES)


def test_the_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "data" / "namespaces.key"

    first = load_secret(path)

    assert load_secret(path) == first
    assert len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_secret_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "namespaces.key"
    path.write_bytes(b"short")

    with pytest.raises(ValueError, match="32 bytes"):
        load_secret(path)
