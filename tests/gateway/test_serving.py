"""The server's end: running streams may finish, new requests are sent away, a second signal does not wait."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from engine.cache_messages import CacheEvents
from gateway.app import build_app
from gateway.conversation.prompt import Prompts
from gateway.services import Services
from gateway.serving import AddressUnavailable, DrainingServer, bind
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import CHAT, body, chat, content_of, error_of, events_of, finish_of
from tests.live import scripted_services


@dataclass(frozen=True, slots=True)
class Running:
    """A draining server in a thread, and a client of it."""

    server: DrainingServer
    thread: threading.Thread
    client: httpx.Client

    def ended_within(self, seconds: float) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()


def start(services: Services, drain_seconds: float) -> Running:
    listener = bind("127.0.0.1", 0)
    engine = services.engine
    assert isinstance(engine, ScriptedEngine)
    app = build_app(Settings(), services)
    server = DrainingServer(app, services.lifecycle, drain_seconds=drain_seconds, cut=engine.close)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    return Running(server, thread, httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}"))


@pytest.fixture
def slow_engine(tokenizer: ByteTokenizer) -> ScriptedEngine:
    """Speaks for about half a second."""
    return ScriptedEngine([Script([tokenizer.id_of("x")] * 25)], step_seconds=0.02)


@pytest.fixture
def running(slow_engine: ScriptedEngine, prompts: Prompts) -> Iterator[Running]:
    running = start(scripted_services(slow_engine, prompts), drain_seconds=20.0)
    yield running
    running.server.handle_exit(signal.SIGINT, None)
    running.server.handle_exit(signal.SIGINT, None)
    assert running.ended_within(5)
    running.client.close()


def test_a_running_stream_ends_well_while_new_requests_are_sent_away(running: Running) -> None:
    with running.client.stream("POST", CHAT, json=body(stream=True)) as response:
        lines = response.iter_lines()
        head = next(lines)

        running.server.stop()
        refused = chat(running.client)
        health = running.client.get("/health")
        events = events_of("\n".join([head, *lines]) + "\n\n")

    assert error_of(refused, 503)["code"] == "engine_unavailable"
    assert int(refused.headers["retry-after"]) > 0
    assert (health.status_code, health.json()) == (503, {"status": "draining"})
    assert (content_of(events), finish_of(events), events[-1]) == ("x" * 25, ["stop"], "[DONE]")
    assert running.ended_within(5)


def test_an_idle_server_ends_at_once(running: Running) -> None:
    assert running.client.get("/health").status_code == 200

    running.server.stop()

    assert running.ended_within(5)


def test_who_watches_the_cache_does_not_keep_the_server(
    running: Running, slow_engine: ScriptedEngine
) -> None:
    slow_engine.events, slow_engine.dies_after_events = [CacheEvents([], num_lost=7)], False
    with running.client.stream("GET", "/admin/cache/events") as response:
        lines = response.iter_lines()
        first = next(lines)

        running.server.stop()
        rest = [line for line in lines if line]

    assert '"num_lost":7' in first
    assert rest == []
    assert running.ended_within(5)


def test_a_second_signal_does_not_wait(running: Running, slow_engine: ScriptedEngine) -> None:
    slow_engine.scripts = [Script([], stall_after=0)]
    with running.client.stream("POST", CHAT, json=body(stream=True)) as response:
        running.server.stop()
        assert not running.ended_within(0.3)

        running.server.handle_exit(signal.SIGINT, None)

        assert running.ended_within(5)
        assert "engine_unavailable" in response.read().decode()


def test_what_does_not_end_within_the_limit_is_cut_and_aborted(
    slow_engine: ScriptedEngine, prompts: Prompts
) -> None:
    slow_engine.scripts = [Script([], stall_after=0)]
    running = start(scripted_services(slow_engine, prompts), drain_seconds=0.1)
    with running.client, running.client.stream("POST", CHAT, json=body(stream=True)) as response:
        running.server.stop()

        assert running.ended_within(8)
        (error,) = events_of(response.read().decode())
    assert error["error"]["code"] == "engine_unavailable"
    assert slow_engine.num_running == 0


def test_a_port_in_use_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(AddressUnavailable, match=f"cannot listen on 127.0.0.1 port {port}: .*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["999.1.1.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(AddressUnavailable, match=host):
        bind(host, 0)


def test_small_answers_are_sent_without_delay() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                # asyncio turns Nagle's algorithm off where the socket says TCP
                assert accepted.proto == socket.IPPROTO_TCP
