"""The client and the driver against servers that say what a test scripts: nothing that fails is lost."""

import asyncio
import json
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from benchmarks.load.arrivals import Bursts, Start, Times, Users
from benchmarks.load.client import Answer, Client, Server
from benchmarks.load.connections import Address
from benchmarks.load.conversations import Conversation, Turn
from benchmarks.load.driver import Load, Run, drive
from benchmarks.load.record import Record
from tests.benchmarks.stub_server import (
    CLOSE,
    Asked,
    answer,
    chunked,
    event,
    stub_server,
    text,
    usage,
)

DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def ask(*script: Iterable[bytes], count: int = 1, timeout: float = 10.0) -> list[Answer]:
    """What comes of asking so often, one after the other; the script's last answer goes on."""

    async def all_of(url: str) -> list[Answer]:
        client = Client(Server(url, "m", timeout=timeout))
        try:
            return [await client.ask([{"role": "user", "content": "hi"}], 3) for _ in range(count)]
        finally:
            client.close()

    with stub_server(lambda asked: script[min(asked.number, len(script) - 1)]) as stub:
        return asyncio.run(all_of(stub.url))


def test_an_answer_has_its_text_counts_and_times() -> None:
    (one,) = ask(answer("a", "b", " é", cached=4))

    assert one.failure is None
    assert one.text == "ab é"
    assert (one.num_tokens, one.num_prompt_tokens, one.num_cached_tokens) == (3, 10, 4)
    assert len(one.arrivals) == 3
    assert one.sent <= one.arrivals[0] <= one.arrivals[-1] <= one.ended


def test_counts_come_from_usage_where_an_event_holds_several_tokens() -> None:
    (one,) = ask(chunked(text("a b c"), text(""), text(None), text("d", "stop"), usage(7), DONE))

    assert (one.num_tokens, one.tells_tokens, len(one.arrivals)) == (7, True, 2)


def test_without_usage_an_event_is_a_token() -> None:
    (one,) = ask(chunked(text("a"), text("b", "stop"), DONE))

    assert not one.tells_tokens
    assert (one.num_tokens, one.num_cached_tokens, one.failure) == (2, None, None)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_timed_and_no_part_of_the_history(name: str) -> None:
    thought = event(choices=[{"delta": {name: "hm"}, "finish_reason": None}])

    (one,) = ask(chunked(thought, thought, text("yes", "stop"), usage(3), DONE))

    assert (len(one.arrivals), one.text) == (3, "yes")


def plain(status: str, body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(body), body)]


@pytest.mark.parametrize(
    ("response", "kind", "detail"),
    [
        (plain("429 Too Many", b'{"error": "slow down"}'), "HTTP 429", '{"error": "slow down"}'),
        (plain("503 Busy", b""), "HTTP 503", ""),
        (plain("200 OK", b'{"choices": []}'), "no event stream", '{"choices": []}'),
        (plain("200 OK", b""), "no event stream", "the body is empty"),
        (chunked(event(choices=[])), "cut short", "0 events"),
        (chunked(text("a"), event(error={"message": "it broke"})), "error in the stream", "it broke"),
        (chunked(text("a"), b"data: {no\n\n", DONE), "unreadable event", "{no"),
        (chunked(text("a"), b'data: {"choices": 1}\n\n', DONE), "unreadable event", "choices"),
        (chunked(text("a"), usage(-5), DONE), "unreadable event", "completion_tokens"),
        (chunked(text("a"), usage(10**15), DONE), "unreadable event", "completion_tokens"),
        (chunked(text("a"), text("b")), "cut short", "2 events"),
        (chunked(text(None, "stop"), DONE), "empty answer", "without a token"),
        ([HEAD, b"5\r\ndata:", CLOSE], "broken response", "ended before"),
        ([b"nonsense\r\n\r\n", CLOSE], "broken response", "nonsense"),
        ([CLOSE], "broken response", "ended before"),
    ],
)
def test_what_goes_wrong_is_told_by_kind(response: list[bytes], kind: str, detail: str) -> None:
    (one,) = ask(response)

    assert one.failure is not None
    assert one.failure.kind == kind
    assert detail in one.failure.detail
    assert one.ended >= one.sent


def test_an_answer_that_does_not_end_is_a_timeout() -> None:
    (one,) = ask([HEAD], timeout=0.05)

    assert one.failure is not None
    assert (one.failure.kind, one.text) == ("timeout", "")


def test_nobody_there_is_no_connection() -> None:
    with stub_server(lambda asked: answer("a")) as stub:
        url = stub.url

    one = asyncio.run(Client(Server(url, "m")).ask([], 1))

    assert one.failure is not None
    assert one.failure.kind == "no connection"


def connections_used(script: Callable[[Asked], Iterable[bytes]], count: int) -> list[int]:
    async def talk(url: str) -> None:
        client = Client(Server(url, "m"))
        for _ in range(count):
            assert (await client.ask([], 1)).failure is None
            await asyncio.sleep(0.02)  # what the server does with the connection has been seen
        client.close()

    with stub_server(script) as stub:
        asyncio.run(talk(stub.url))
    return [asked.connection for asked in stub.asked]


def test_a_connection_is_used_again() -> None:
    assert connections_used(lambda asked: answer("a"), 3) == [0, 0, 0]


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    assert connections_used(lambda asked: [*answer("a"), CLOSE], 3) == [0, 1, 2]


def test_a_server_that_says_it_will_close_is_believed() -> None:
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"

    assert connections_used(lambda asked: [head, text("a", "stop"), DONE, CLOSE], 2) == [0, 1]


def test_a_kept_connection_that_ends_unread_is_asked_again_once() -> None:
    script = [answer("a"), [CLOSE], answer("b")]

    first, second = ask(*script, count=2)

    assert (first.text, second.text) == ("a", "b")


def test_a_kept_connection_that_ends_in_an_answer_is_not_asked_again() -> None:
    first, second = ask(answer("a"), [HEAD, CLOSE], answer("b"), count=2)

    assert first.failure is None
    assert second.failure is not None


def test_the_request_says_what_was_asked_for() -> None:
    async def one(url: str) -> None:
        client = Client(Server(url, "m", "secret", {"top_k": 1, "temperature": 1}, ignores_eos=False))
        await client.ask([{"role": "user", "content": "é"}], 7)
        client.close()

    with stub_server(lambda asked: answer("a")) as stub:
        asyncio.run(one(stub.url))

    (asked,) = stub.asked
    assert asked.head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{stub.port}\r\n" in asked.head
    assert "\r\nAuthorization: Bearer secret\r\n" in asked.head
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "é"}],
        "stream": True,
        "max_tokens": 7,
        "temperature": 1,
        "stream_options": {"include_usage": True},
        "top_k": 1,
    }
    assert b" " not in asked.raw
    assert json.loads(Server("", "m").body([], 1))["ignore_eos"] is True


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:8/v1/", Address("a", 8, "/v1", False)),
        ("https://a", Address("a", 443, "", True)),
        ("http://[::1]/x", Address("::1", 80, "/x", False)),
    ],
)
def test_an_address_is_read(url: str, address: Address) -> None:
    assert Address.parse(url) == address
    assert Address("::1", 80, "", False).authority == "[::1]:80"


@pytest.mark.parametrize("url", ["a:80", "ftp://a", "http://", "http://a:x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Address.parse(url)


def drive_all(
    conversations: list[Conversation], start: Start, script: Callable[[Asked], Iterable[bytes]]
) -> tuple[Run, list[Asked]]:
    seen: list[Record] = []
    with stub_server(script) as stub:
        run = asyncio.run(drive(Load(conversations, start), Server(stub.url, "m"), seen.append))
    assert tuple(seen) == run.records
    return run, stub.asked


def talk(number: int, num_turns: int, pause: float = 0.0) -> Conversation:
    return Conversation(tuple(Turn(f"{number}.{place}", 2, pause) for place in range(num_turns)), "Be brief.")


def test_each_turn_carries_the_whole_history() -> None:
    run, asked = drive_all([talk(0, 3)], Users(1), lambda asked: answer(f"r{asked.number}", "!"))

    history = [[message["content"] for message in each.body["messages"]] for each in asked]
    assert history == [
        ["Be brief.", "0.0"],
        ["Be brief.", "0.0", "r0!", "0.1"],
        ["Be brief.", "0.0", "r0!", "0.1", "r1!", "0.2"],
    ]
    assert [message["role"] for message in asked[1].body["messages"]] == "system user assistant user".split()
    assert [(each.conversation, each.turn, each.num_tokens) for each in run.records] == [
        (0, 0, 2),
        (0, 1, 2),
        (0, 2, 2),
    ]
    assert run.seconds == run.records[-1].ended


def test_an_answer_without_text_stands_in_the_history_as_ok() -> None:
    _, asked = drive_all([talk(0, 2)], Users(1), lambda asked: chunked(text(None, "stop"), usage(2), DONE))

    assert asked[1].body["messages"][2] == {"role": "assistant", "content": "ok"}


def test_a_conversation_ends_with_its_failure_and_the_others_go_on() -> None:
    def script(asked: Asked) -> list[bytes]:
        return plain("500 No", b"") if asked.body["messages"][-1]["content"] == "1.1" else answer("a")

    run, _ = drive_all([talk(number, 3) for number in range(3)], Users(3), script)

    assert sorted((each.conversation, each.turn) for each in run.records if each.failure) == [(1, 1)]
    assert len(run.records) == 8
    assert run.num_unsent == 1


def test_users_take_conversations_in_order_and_one_at_a_time() -> None:
    run, asked = drive_all([talk(number, 2) for number in range(3)], Users(1), lambda asked: answer("a"))

    assert [each.body["messages"][-1]["content"] for each in asked] == "0.0 0.1 1.0 1.1 2.0 2.1".split()
    assert all(earlier.ended <= later.sent for earlier, later in pairwise(run.records))


def test_an_open_loop_sends_at_its_times_and_waits_for_nobody() -> None:
    stalled = [HEAD, *answer("a")[1:2]]

    def script(asked: Asked) -> list[bytes]:
        if asked.number == 2:
            return answer("a")
        return [*stalled, CLOSE] if asked.number == 0 else answer("b")

    run, _ = drive_all([talk(number, 1) for number in range(3)], Times((0.0, 0.05, 0.1)), script)

    by_number = {each.conversation: each for each in run.records}
    assert [by_number[number].planned for number in range(3)] == [0.0, 0.05, 0.1]
    assert all(each.sent >= each.planned for each in run.records)


def test_a_burst_begins_when_the_one_before_has_ended() -> None:
    run, _ = drive_all([talk(number, 1) for number in range(7)], Bursts(3), lambda asked: answer("a"))

    bursts = [[each for each in run.records if each.conversation // 3 == number] for number in range(3)]
    assert [len(each) for each in bursts] == [3, 3, 1]
    for earlier, later in pairwise(bursts):
        assert len({each.planned for each in later}) == 1
        assert max(each.ended for each in earlier) <= later[0].planned


def test_a_pause_stands_between_turns_and_is_no_lateness() -> None:
    run, _ = drive_all([talk(0, 2, pause=0.1)], Users(1), lambda asked: answer("a"))

    first, second = run.records
    assert second.planned == pytest.approx(first.ended + 0.1)
    assert second.sent >= second.planned
