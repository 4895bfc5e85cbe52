"""API keys: who gets in, and as whom."""

import pytest

from gateway.auth import Keyring
from gateway.errors import Unauthorized
from gateway.setting_sections import ApiKey

ALICE, BOB = "alice-alice-alice", "böb-böb-böb-böb-b"
CAROL = "carol-carol-carol"


@pytest.fixture
def keyring() -> Keyring:
    return Keyring(
        [
            ApiKey.model_validate({"key": ALICE, "tenant": "a", "metrics": True}),
            ApiKey.model_validate({"key": BOB, "tenant": "b"}),
            ApiKey.model_validate({"key": CAROL, "tenant": "c", "admin": True}),
        ]
    )


def test_a_key_names_its_tenant_and_its_rights(keyring: Keyring) -> None:
    alice = keyring.principal(b"Bearer " + ALICE.encode())
    bob = keyring.principal(b"bearer  " + BOB.encode())
    carol = keyring.principal(b"Bearer " + CAROL.encode())

    assert (alice.tenant, alice.may_read_metrics, alice.is_admin) == ("a", True, False)
    assert (bob.tenant, bob.may_read_metrics, bob.is_admin) == ("b", False, False)
    assert (carol.tenant, carol.may_read_metrics, carol.is_admin) == ("c", True, True)


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Basic " + ALICE.encode(), b"Bearer k\xe9y",
     b"Bearer " + b"x" * 10**6, ALICE.encode(), b"Bearer " + ALICE.encode() + b"x",
     b"Bearer " + ALICE.encode()[:-1]],
)  # fmt: skip
def test_anything_but_a_known_key_is_refused(keyring: Keyring, header: bytes | None) -> None:
    with pytest.raises(Unauthorized) as refusal:
        keyring.principal(header)

    assert refusal.value.headers["www-authenticate"] == "Bearer"


def test_without_keys_everybody_is_the_default_tenant_and_an_administrator() -> None:
    everybody = Keyring([]).principal(None)

    assert (everybody.tenant, everybody.may_read_metrics, everybody.is_admin) == ("default", True, True)


def test_the_keyring_holds_no_key(keyring: Keyring) -> None:
    assert ALICE not in repr(vars(keyring))
