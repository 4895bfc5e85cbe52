"""Namespaces: stable, private, and never equal for two different askers."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.namespaces import Namespaces, load_secret
from prefix_cache.node import Namespace
from prefix_cache.quota import account_of

NAMESPACES = Namespaces(b"k" * 32)
PLAIN = "846b783a3ba253c9003a86455a08169afd1dbf223b0305f6f146b09fe123c160"
SALTED = "846b783a3ba253c9003a86455a08169ae04a12daa2a7e9814a436748e5da3138"
NAMES = st.text(alphabet="a\x00\x01b", max_size=4)


@given(NAMES, NAMES | st.none(), NAMES, NAMES | st.none())
def test_two_askers_share_a_namespace_only_if_they_are_the_same(
    tenant: str, salt: str | None, other_tenant: str, other_salt: str | None
) -> None:
    same = (tenant, salt) == (other_tenant, other_salt)

    assert (NAMESPACES.of(tenant, salt) == NAMESPACES.of(other_tenant, other_salt)) == same


@given(NAMES, NAMES | st.none(), NAMES)
def test_all_namespaces_of_a_tenant_count_to_its_account_and_to_no_other(
    tenant: str, salt: str | None, other_tenant: str
) -> None:
    namespace = NAMESPACES.of(tenant, salt)

    assert len(namespace) == 32
    assert account_of(Namespace(namespace)) == NAMESPACES.account(tenant)
    assert (account_of(Namespace(namespace)) == NAMESPACES.account(other_tenant)) == (tenant == other_tenant)


def test_namespaces_stay_what_they_were() -> None:
    assert NAMESPACES.of("a").hex() == PLAIN
    assert NAMESPACES.of("a", "s").hex() == SALTED


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
