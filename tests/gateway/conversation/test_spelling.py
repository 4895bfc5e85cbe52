"""How log-probabilities name tokens."""

from gateway.conversation.byte_bpe import ByteBPE
from gateway.conversation.spelling import Spelling


def test_a_token_s_text_is_real_text(tiny: ByteBPE) -> None:
    spelling = Spelling(tiny)

    assert "".join([spelling.text_of(token_id) for token_id in tiny.encode(" the\n")]) == " the\n"


def test_a_control_token_is_named_by_its_spelling(tiny: ByteBPE) -> None:
    spelling, end = Spelling(tiny), tiny.special_tokens["<|im_end|>"]

    assert (spelling.text_of(end), spelling.bytes_of(end)) == ("<|im_end|>", b"<|im_end|>")


def test_a_token_that_is_no_text_alone_is_named_by_its_bytes(tiny: ByteBPE) -> None:
    first = next(each for each in range(tiny.vocab_size) if tiny.decode_bytes(each) == b"\xe4")

    assert Spelling(tiny).text_of(first) == r"bytes:\xe4"
    assert Spelling(tiny).bytes_of(first) == b"\xe4"


def test_what_is_no_token_has_no_name(tiny: ByteBPE) -> None:
    assert Spelling(tiny).text_of(10**6) == ""
