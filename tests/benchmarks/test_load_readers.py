"""The client's readers: what comes out does not depend on how the bytes were cut."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.event_reader import EventReader
from benchmarks.load.http_reader import BrokenResponse, ResponseReader

cuts = st.lists(st.integers(0, 1 << 12), max_size=30)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


def read_events(parts: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [data for part in parts for data in reader.feed(part)] + reader.close()


def read_response(parts: list[bytes]) -> tuple[int, bytes, bool, bool]:
    reader = ResponseReader()
    body = b"".join(reader.feed(part) for part in parts if part)
    return reader.status, body, reader.is_done, reader.keeps_alive


@given(
    st.lists(st.text(max_size=8).map(lambda text: json.dumps({"a": text}, ensure_ascii=False).encode())),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([b"data: ", b"data:"]),
    st.sampled_from([b"", b": keep-alive", b"event: x", b"id: 7", b"retry: 1"]),
    cuts,
)
def test_events_are_the_same_however_their_bytes_are_cut(
    payloads: list[bytes], end: bytes, field: bytes, other: bytes, places: list[int]
) -> None:
    stream = b"".join((other + end if other else b"") + field + data + end * 2 for data in payloads)

    assert read_events(pieces(stream, places)) == payloads


def test_a_comment_is_no_event_and_lines_of_data_are_joined() -> None:
    assert read_events([b": ping\n\ndata: a\ndata:  b\n\n\n\ndata:c\r\n\r\n"]) == [b"a\n b", b"c"]


def test_a_last_event_without_an_empty_line_counts() -> None:
    assert read_events([b"data: a\n\ndata: [DONE]"]) == [b"a", b"[DONE]"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), cuts, st.booleans())
def test_a_chunked_body_is_the_same_however_its_bytes_are_cut(
    chunks: list[bytes], places: list[int], has_more: bool
) -> None:
    extra, trailer = (b";a=b", b"x-trailer: 1\r\n") if has_more else (b"", b"")
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(each), extra, each) for each in chunks)
    response = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"
    )

    assert read_response(pieces(response, places)) == (200, b"".join(chunks), True, True)


@given(st.binary(max_size=60), cuts, st.sampled_from([b"", b"Connection: close\r\n"]))
def test_a_counted_body_is_the_same_however_its_bytes_are_cut(
    body: bytes, places: list[int], field: bytes
) -> None:
    response = b"HTTP/1.1 429 Too Many\r\n%bcontent-length: %d\r\n\r\n%b" % (field, len(body), body)

    assert read_response(pieces(response, places)) == (429, body, True, not field)


@given(st.binary(max_size=60), cuts)
def test_a_body_without_a_length_ends_with_the_connection(body: bytes, places: list[int]) -> None:
    reader = ResponseReader()
    found = [reader.feed(part) for part in pieces(b"HTTP/1.0 200 OK\r\n\r\n" + body, places) if part]

    assert not reader.is_done
    reader.close()
    assert (b"".join(found), reader.is_done, reader.keeps_alive) == (body, True, False)


def test_an_interim_response_is_not_the_answer() -> None:
    response = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"

    assert read_response([response])[0] == 204
    assert read_response([response])[2]


@pytest.mark.parametrize(
    "response",
    [
        b"220 smtp.example\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(response: bytes) -> None:
    with pytest.raises(BrokenResponse):
        ResponseReader().feed(response)


@pytest.mark.parametrize("length", range(70))
def test_a_response_cut_anywhere_is_not_whole(length: int) -> None:
    response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    reader = ResponseReader()
    reader.feed(response[:length])

    if length < len(response):
        with pytest.raises(BrokenResponse):
            reader.close()
    else:
        reader.close()
