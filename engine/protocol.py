"""What a gateway and its engine must agree on: the fields of everything that they send each other.

An unknown field is passed over when a message is read, so two versions would misunderstand each other in
silence.
"""

from functools import cache
from hashlib import blake2b

import msgspec

from engine.messages import EngineConfig, FromEngine, ToEngine

__all__ = ["protocol_digest"]


@cache
def protocol_digest() -> str:
    """32 hexadecimal digits, the same for two processes whose messages have the same fields and types."""
    _, schemas = msgspec.json.schema_components([EngineConfig, ToEngine, FromEngine])
    return blake2b(msgspec.json.encode(schemas), digest_size=16).hexdigest()
