"""A prompt as names of its blocks, short enough to be kept with each row of usage.

Replayed through the cache's own tree they answer what more memory, or another policy, would have given. A
name tells equal beginnings within one namespace from others and nothing else: its chain begins with the
namespace, which is a keyed digest.
"""

from hashlib import blake2b

__all__ = ["NAME_BYTES", "trace_of"]

NAME_BYTES = 4
_TOKEN_BYTES = 4


def trace_of(namespace: bytes, prompt: bytes, block_size: int) -> bytes:
    """Four bytes for each whole block of a prompt (packed int32 ids), in order."""
    block_bytes = block_size * _TOKEN_BYTES
    chain = blake2b(namespace, digest_size=16)
    names = bytearray()
    for end in range(block_bytes, len(prompt) + 1, block_bytes):
        chain.update(prompt[end - block_bytes : end])
        names += chain.copy().digest()[:NAME_BYTES]
    return bytes(names)
