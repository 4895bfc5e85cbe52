"""What a grammar lets an answer go on with: against a vocabulary of single bytes and a few longer tokens."""

import gc
import threading
from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from engine.constraints import Constraints
from engine.sampling.allowed import Allowed
from engine.sampling.rows import Row
from engine.sequence import SamplingParams, Sequence
from engine.vocabulary import Vocabulary

TEXTS = [*[bytes([byte]) for byte in range(256)], b"12", b"true", b"", b""]
CALL, END = 258, 259
VOCABULARY = Vocabulary(tokens=TEXTS, control_names={CALL: "<|call|>", END: "<|end|>"}, end_token_ids=[END])
DIGITS = "start: /[0-9]{1,3}/"


@pytest.fixture
def constraints() -> Iterator[Constraints]:
    made = Constraints(lambda: VOCABULARY, len(TEXTS))
    yield made
    made.close()


def sequence_of(grammar: str | None, drawn: bytes = b"") -> Sequence:
    return Sequence(
        request_id="request",
        choice=0,
        tokens=array("i", [1, 2, *drawn]),
        num_prompt_tokens=2,
        sampling=SamplingParams(max_tokens=8, grammar=grammar),
        namespace=b"",
    )


def find(constraints: Constraints, *rows: Row) -> Allowed:
    finding = constraints.begin(rows)
    assert finding is not None
    return finding.result()


def tokens_of(allowed: Allowed, place: int) -> set[int]:
    bits = np.unpackbits(allowed.bits[place].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[: len(TEXTS)]).tolist())


def next_tokens(constraints: Constraints, sequence: Sequence) -> set[int]:
    return tokens_of(find(constraints, Row(sequence)), 0)


NUMBERS = {*b"0123456789"}


def test_an_answer_goes_on_as_its_grammar_does_and_ends_where_it_may(constraints: Constraints) -> None:
    sequence = sequence_of(DIGITS)
    assert next_tokens(constraints, sequence) == NUMBERS | {256}

    sequence.tokens.extend(b"7")
    assert next_tokens(constraints, sequence) == NUMBERS | {256, END}

    sequence.tokens.append(256)
    assert next_tokens(constraints, sequence) == {END}


def test_what_was_drawn_meanwhile_is_followed_at_once(constraints: Constraints) -> None:
    assert next_tokens(constraints, sequence_of(DIGITS, b"123")) == {END}


def test_forks_of_one_request_are_followed_apart(constraints: Constraints) -> None:
    short, long = sequence_of(DIGITS, b"1"), sequence_of(DIGITS, b"123")

    found = find(constraints, Row(long), Row(short))

    assert tokens_of(found, 0) == {END}
    assert tokens_of(found, 1) == NUMBERS | {256, END}


def test_rows_are_those_of_sequences_with_a_grammar_and_of_their_proposals(constraints: Constraints) -> None:
    free, held = sequence_of(None), sequence_of(DIGITS, b"1")

    found = find(
        constraints, Row(free), Row(free, (5,)), Row(held), Row(held, (*b"2",)), Row(held, (*b"2", 256))
    )

    assert found.rows == [2, 3, 4]
    assert tokens_of(found, 0) == NUMBERS | {256, END}
    assert tokens_of(found, 1) == NUMBERS | {END}  # after "12" there is room for one digit
    assert next_tokens(constraints, held) == NUMBERS | {256, END}, "proposals leave no trace"


def test_nothing_is_found_where_nobody_has_a_grammar(constraints: Constraints) -> None:
    assert constraints.begin([Row(sequence_of(None))]) is None


def test_a_control_token_stands_where_the_grammar_names_it_and_nowhere_else(
    constraints: Constraints,
) -> None:
    sequence = sequence_of('start: <|call|> /[^x]/ "z"')
    assert next_tokens(constraints, sequence) == {CALL}

    sequence.tokens.append(CALL)
    assert not next_tokens(constraints, sequence) & {CALL, END, ord("x")}


def test_a_text_without_choice_may_be_written_in_any_tokens(constraints: Constraints) -> None:
    assert next_tokens(constraints, sequence_of('start: "12" | "true"')) == {256, 257, ord("1"), ord("t")}
    assert next_tokens(constraints, sequence_of('start: "12"')) == {256, ord("1")}


def test_what_is_no_grammar_is_refused_in_its_own_words(constraints: Constraints) -> None:
    with pytest.raises(ValueError, match="Expected token"):
        constraints.prepare("start: (").result()


def test_an_answer_that_left_its_grammar_is_told_alone(constraints: Constraints) -> None:
    lost, sound = sequence_of(DIGITS, b"x"), sequence_of(DIGITS)

    found = find(constraints, Row(lost), Row(sound))

    assert set(found.failures) == {lost}
    assert tokens_of(found, 1) == NUMBERS | {256}


def test_a_grammar_that_costs_too_much_is_told_and_does_not_stall(constraints: Constraints) -> None:
    sequence = sequence_of('start: a*\na: "x" | "x" a | a a | "x" "x" a | a "x" a')
    for _ in range(40):
        sequence.tokens.extend(b"x" * 8)
        found = find(constraints, Row(sequence))
        if found.failures:
            break

    assert sequence in found.failures


def test_matchers_go_with_their_sequences(constraints: Constraints) -> None:
    sequence = sequence_of(DIGITS)
    next_tokens(constraints, sequence)
    assert len(constraints._progress) == 1

    del sequence
    gc.collect()

    assert len(constraints._progress) == 0


def test_few_compiled_grammars_are_kept(constraints: Constraints) -> None:
    for number in range(100):
        constraints.prepare(f"start: /[0-9]{{{number + 1}}}/").result()

    assert len(constraints._compiled) == 64


def test_a_long_chain_of_rules_ends_no_process(constraints: Constraints) -> None:
    rules = "\n".join([f"a{place}: a{place + 1}" for place in range(6_000)])

    constraints.prepare(f'start: a0\n{rules}\na6000: "1"').result()

    assert next_tokens(constraints, sequence_of('start: "1"')) == {ord("1")}


def test_what_is_compiled_is_told_at_once_however_busy_the_compiler_is(constraints: Constraints) -> None:
    may_end = threading.Event()
    constraints.prepare(DIGITS).result()
    with pytest.raises(ValueError, match="Expected"):
        constraints.prepare("start: (").result()
    constraints._compiler.submit(may_end.wait, 20)
    try:
        assert constraints.prepare(DIGITS).done()
        assert isinstance(constraints.prepare("start: (").exception(timeout=0), ValueError)
        assert not constraints.prepare('start: "new"').done()
    finally:
        may_end.set()


@pytest.mark.parametrize("grammar", [r"start: /[^\s\S]/", "start: a\na: a", 'start: %json {"$ref": "#"}'])
def test_a_grammar_that_no_answer_satisfies_is_refused(constraints: Constraints, grammar: str) -> None:
    with pytest.raises(ValueError, match="no answer satisfies it"):
        constraints.prepare(grammar).result()


def test_a_bounded_part_ends_at_its_bound_whatever_was_proposed(constraints: Constraints) -> None:
    sequence = sequence_of("start: thought <|call|> /[0-9]*/\nthought[max_tokens=3]: /[a-z]+/")
    for letter in b"abc":
        found = find(constraints, Row(sequence), Row(sequence, (*b"xy",)), Row(sequence, (*b"xyz", CALL)))
        assert len(tokens_of(found, 0)) > 20
        sequence.tokens.append(letter)

    assert next_tokens(constraints, sequence) == {CALL}
    sequence.tokens.append(CALL)
    assert next_tokens(constraints, sequence) == NUMBERS | {256, END}
