"""Which part of the cache a request sees: a keyed digest of its tenant and its own salt.

The key is 32 random bytes, made once in the data folder. Namespaces are stable when API keys are rotated,
and nobody without the file can name another tenant's. Two different (tenant, salt) pairs never have the
same message. A namespace is 32 bytes: the account, which all namespaces of a tenant begin with and whose
quota they share, and 16 bytes that tell them apart.
"""

import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Namespaces", "load_secret"]

_SECRET_BYTES = 32
_ACCOUNT_BYTES = 16  # the engine takes the account for this much of a namespace


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Names of namespaces, from one secret."""

    secret: bytes = field(repr=False)
    _unsalted: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def account(self, tenant: str) -> bytes:
        """The 16 bytes that every namespace of a tenant begins with."""
        return self._digest(b"account", tenant, b"")[:_ACCOUNT_BYTES]

    def of(self, tenant: str, salt: str | None = None) -> bytes:
        """The namespace of a tenant, or the part of it that a salt sets apart."""
        if salt is not None:
            return self._named(tenant, b"\x01" + salt.encode())
        if tenant not in self._unsalted:  # there are few tenants, and what clients salt is not kept
            self._unsalted[tenant] = self._named(tenant, b"")
        return self._unsalted[tenant]

    def _named(self, tenant: str, told_apart: bytes) -> bytes:
        return self.account(tenant) + self._digest(b"part", tenant, told_apart)[:_ACCOUNT_BYTES]

    def _digest(self, purpose: bytes, tenant: str, rest: bytes) -> bytes:
        encoded = tenant.encode()
        # the length says where the tenant ends, so no salt can shift the border
        message = purpose + b"\x00" + len(encoded).to_bytes(8, "big") + encoded + rest
        return hmac.digest(self.secret, message, hashlib.sha256)


def load_secret(path: Path) -> bytes:
    """Read the secret, or make it. Two processes that start at once end with the same one."""
    if not path.exists():
        _create(path)
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"{path} must hold {_SECRET_BYTES} bytes; remove it to have a new one made")
    return secret


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # mode 0600
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # a link, unlike a rename, never replaces the file of a process that was faster
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
