"""Every byte has one character of its own."""

import pytest

from gateway.conversation.byte_alphabet import ALPHABET, to_bytes


def test_every_byte_has_a_printable_character_of_its_own() -> None:
    assert to_bytes("".join(ALPHABET)) == bytes(range(256))
    assert len(set(ALPHABET)) == 256
    assert not any(letter.isspace() for letter in ALPHABET)


def test_the_space_is_spelled_as_vocabularies_spell_it() -> None:
    assert to_bytes("Ġthe") == b" the"


def test_other_characters_are_refused() -> None:
    with pytest.raises(ValueError, match="byte alphabet"):
        to_bytes("中")
