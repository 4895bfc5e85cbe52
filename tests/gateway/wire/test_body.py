"""Bodies: whatever comes in, a dict comes out or a 400 does."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, UnsupportedMediaType
from gateway.wire.body import decode_object, require_json

BAD_BODIES = [
    b"",
    b"{",
    b'{"a":1,x}',
    b"[]",
    b"7",
    b"null",
    b'"text"',
    b'{"a":"\xc3',
    b'{"a":"\xff"}',
    b'{"a":1} trailing',
    b"\xef\xbb\xbf{}",
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":"\\ud83d"}',
    b'{"a":"x \\ude00 y"}',
    b'{"\\ud800":1}',
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:16]))
def test_a_bad_body_is_a_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_object(body)

    assert refusal.value.code == "invalid_json"


@given(st.binary(max_size=64) | st.text(alphabet='{}[]":,\\ud8a1e-. ', max_size=40).map(str.encode))
def test_no_bytes_make_anything_else_than_an_object_or_a_400(body: bytes) -> None:
    with suppress(InvalidRequest):
        assert isinstance(decode_object(body), dict)


@given(st.dictionaries(st.text(), st.text() | st.integers(-(2**63), 2**63) | st.none() | st.booleans()))
def test_a_good_body_means_what_it_says(fields: dict[str, object]) -> None:
    assert decode_object(json.dumps(fields).encode()) == fields


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert decode_object(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "good", ["", "application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
)
def test_json_types_are_taken(good: str) -> None:
    require_json(good)


@pytest.mark.parametrize(
    "bad", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png"]
)
def test_other_types_are_refused(bad: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        require_json(bad)


@pytest.mark.parametrize(
    ("body", "words"), [(b" \n", "empty"), (b'\xef\xbb\xbf{"model": "m"}', "byte-order mark")]
)
def test_common_slips_are_named(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        decode_object(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (rb'{"a": "\ud83d and more"}', "surrogate pair"),
        (b'{"a": 1e999}', "64-bit"),
        (b'{"a": [1, 2', "too early"),
    ],
)
def test_the_decoders_riddles_are_put_in_words(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        decode_object(body)
