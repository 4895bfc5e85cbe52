"""The model that answers, and the names it answers to."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import NotFound

__all__ = ["Catalog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """One model under its served name and its aliases."""

    name: str
    aliases: Sequence[str]
    created: int  # seconds since 1970
    version: str  # of the server

    @property
    def names(self) -> list[str]:
        """Every name that a request may use, the served one first."""
        return list(dict.fromkeys((self.name, *self.aliases)))

    @property
    def system_fingerprint(self) -> str:
        """Changes when the same request may be answered otherwise: with the model or the server."""
        identity = f"{self.name} {self.version}".encode()
        return f"fp_{hashlib.sha256(identity).hexdigest()[:12]}"

    def require(self, name: str) -> None:
        """Raise NotFound for a name that nobody has."""
        if name not in self.names:
            raise NotFound(
                f"There is no model of this name here; GET /v1/models lists: {', '.join(self.names)}.",
                param="model",
                code="model_not_found",
            )
