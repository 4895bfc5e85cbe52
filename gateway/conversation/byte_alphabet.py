"""The alphabet in which byte-level vocabularies spell bytes: one printable character for each of the 256.

It owns the mapping and nothing else. Printable Latin-1 characters stand for themselves; the other 68 bytes
take the code points from 256 on, in order. Invariant: no two bytes share a character.
"""

__all__ = ["ALPHABET", "to_bytes"]

_ITSELF = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _ITSELF]

ALPHABET: tuple[str, ...] = tuple(
    chr(byte) if byte in _ITSELF else chr(256 + _OTHERS.index(byte)) for byte in range(256)
)
_BYTE_OF = {letter: byte for byte, letter in enumerate(ALPHABET)}


def to_bytes(spelling: str) -> bytes:
    """Raises ValueError when a character lies outside the alphabet."""
    try:
        return bytes([_BYTE_OF[letter] for letter in spelling])
    except KeyError as error:
        raise ValueError(f"{spelling!r} is not spelled in the byte alphabet") from error
