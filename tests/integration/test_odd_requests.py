"""Odd but plausible requests, each told apart: served as documented, or refused with a word that helps."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from gateway.conversation.detokenizer import detokenize
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from gateway.settings import Settings
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.talk import CHAT, body, chat, content_of, error_of, events_of, stream
from tests.live import live_server, scripted_services

ALTERNATING = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{{ message.content }}"
    "{% endfor %}"
)
BARE = "{% for message in messages %}{{ message.content }}{% endfor %}"
DATED = "{{ strftime_now('%d %b %Y') }}\n" + CHATML
BOS_FIRST = "{{ bos_token }}" + CHATML


class Server:
    """A scripted engine behind a template; its answer is always the same three letters."""

    def __init__(self, client: httpx.Client, engine: ScriptedEngine) -> None:
        self.client = client
        self.engine = engine

    def ask(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        return chat(self.client, messages=list(messages), **fields)

    @property
    def prompt(self) -> list[int]:
        """The last prompt's ids."""
        return self.engine.prompts[-1]


@contextmanager
def serve(template: str, specials: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Iterator[Server]:
    tokenizer = ByteTokenizer(specials)
    engine = ScriptedEngine([Script([*b"abc"])])
    model = TextModel(tokenizer, ChatTemplate(template, bos_token="<s>"), (257,))
    services = scripted_services(engine, Prompts(model, transcript_bytes=1 << 20))
    with live_server(services, Settings()) as live, httpx.Client(base_url=live.url, timeout=10) as client:
        yield Server(client, engine)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(CHATML) as running:
        yield running


def said(role: str, content: Any = "text") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_template_refuses_is_a_400_in_its_own_words(streamed: bool) -> None:
    with serve(ALTERNATING) as server:
        system = error_of(server.ask(said("system"), said("user"), stream=streamed), 400)
        twice = error_of(server.ask(said("user"), said("user"), stream=streamed), 400)
        first = error_of(server.ask(said("assistant"), stream=streamed), 400)
        assert server.ask(said("user")).status_code == 200

    assert system["message"] == "System role not supported"
    assert twice["message"] == first["message"] == "Roles must alternate user/assistant"
    assert system["param"] == "messages"


@pytest.mark.parametrize("streamed", [True, False])
def test_messages_that_render_to_nothing_are_a_400(streamed: bool) -> None:
    with serve(BARE) as server:
        error = error_of(server.ask(said("user", ""), stream=streamed), 400)
        num_submits = len(server.engine.submits)

    assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    assert num_submits == 0


def test_a_prompt_begins_with_one_token_of_its_beginning_however_often_a_client_spells_it() -> None:
    with serve(BOS_FIRST, ("<|im_start|>", "<|im_end|>", "<s>")) as server:
        server.ask(said("user", "Hi"))
        plain = server.prompt
        server.ask(said("user", "<s><s>Hi"))

    assert plain[0] == 258
    assert [prompt.count(258) for prompt in (plain, server.prompt)] == [1, 1]
    assert len(server.prompt) == len(plain) + len("<s><s>")


def test_a_new_day_makes_a_new_beginning_and_the_rest_is_still_right() -> None:
    """A template may write the date at its head; the turn after midnight reads as if it were the first."""
    tokenizer = ByteTokenizer()
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(DATED), (257,)), transcript_bytes=1 << 20)
    before, after = datetime(2026, 12, 31, 23, 59, 58), datetime(2027, 1, 1, 0, 0, 3)
    drawn = [tokenizer.id_of("Hel"), tokenizer.id_of("lo")]
    first = prompts.render([said("user")], tenant="t", now=before)
    prompts.record(first, "Hello", drawn)
    turns = [said("user"), said("assistant", "Hello"), said("user")]

    same_day = prompts.render(turns, tenant="t", now=before).ids.tolist()
    next_day = prompts.render(turns, tenant="t", now=after).ids.tolist()

    assert same_day[: len(first.ids) + 2] == [*first.ids, *drawn]
    assert detokenize(tokenizer, next_day).startswith("01 Jan 2027\n")
    assert detokenize(tokenizer, next_day)[11:] == detokenize(tokenizer, same_day)[11:]


@pytest.mark.parametrize(
    "messages",
    [[said("assistant")], [{"role": "tool", "tool_call_id": "z", "content": "1"}], [said("system")],
     [said("user", [])], [said("user", "")], [said("assistant", None)]],
    ids=["assistant", "tool", "system", "no parts", "empty", "null"],
)  # fmt: skip
def test_a_conversation_may_begin_with_anybody_and_say_nothing(
    server: Server, messages: list[dict[str, Any]]
) -> None:
    assert server.ask(*messages).json()["choices"][0]["message"]["content"] == "abc"


def test_an_empty_answer_stays_a_turn_of_its_own(server: Server) -> None:
    server.ask(said("user", "A"), said("assistant", ""), said("user", "B"))

    starts = [place for place, token_id in enumerate(server.prompt) if token_id == 256]
    roles = [bytes(server.prompt[place + 1 : place + 5]) for place in starts]
    assert roles == [b"user", b"assi", b"user", b"assi"]


@pytest.mark.parametrize("prefill", ["The answer is", [{"type": "text", "text": "The answer is"}]])
def test_a_continued_message_ends_the_prompt_in_whatever_form_it_came(server: Server, prefill: Any) -> None:
    answer = server.ask(said("user", "2+2?"), said("assistant", prefill), continue_final_message=True)

    assert bytes(server.prompt[-14:]) == b"\nThe answer is"
    assert answer.json()["choices"][0]["message"]["content"] == "abc"


def test_an_empty_message_can_be_continued_and_a_users_cannot(server: Server) -> None:
    server.ask(said("user", "2+2?"), said("assistant", ""), continue_final_message=True)
    assert bytes(server.prompt[-10:]) == b"assistant\n"

    error = error_of(server.ask(said("user", "2+2?"), continue_final_message=True), 400)
    assert error["param"] == "continue_final_message"


@pytest.mark.parametrize("stop", [[], None, ["1", "2", "3", "4", "5"], "x" * 10_000, "\n", "😀", ["a" * 9]])
def test_stop_strings_that_do_not_come_up_change_nothing(server: Server, stop: Any) -> None:
    assert server.ask(said("user"), stop=stop).json()["choices"][0]["message"]["content"] == "abc"
    assert content_of(stream(server.client, stop=stop)) == "abc"


def test_of_a_field_that_stands_twice_the_last_counts(server: Server) -> None:
    raw = b'{"model":"scripted","messages":[{"role":"user","content":"a"}],"n":1,"n":2}'

    assert len(server.client.post(CHAT, content=raw).json()["choices"]) == 2


@pytest.mark.parametrize("depth", [1, 30, 200, 400, 600, 800, 990, 1100, 3000])
@pytest.mark.parametrize("place", ["zzz", "metadata", "tool_calls", "content", "prediction"])
def test_nothing_is_nested_so_deeply_that_it_is_a_fault_of_ours(
    server: Server, place: str, depth: int
) -> None:
    nested = "[" * depth + "]" * depth
    if place == "tool_calls":
        message = f'{{"role":"assistant","tool_calls":[{{"function":{{"arguments":{nested}}}}}]}}'
    elif place == "content":
        message = f'{{"role":"user","content":{nested}}}'
    else:
        message = '{"role":"user","content":"a"}'
    rest = f',"{place}":{nested}' if place in ("zzz", "metadata", "prediction") else ""

    response = server.client.post(CHAT, content=f'{{"model":"scripted","messages":[{message}]{rest}}}')

    assert response.status_code in (200, 400), response.text
    assert server.ask(said("user")).status_code == 200


def test_whole_answers_are_json_and_streams_name_their_charset(server: Server) -> None:
    whole = server.ask(said("user", "✅"))
    streamed = server.client.post(CHAT, json=body(stream=True))

    assert whole.headers["content-type"] == "application/json"
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events_of(streamed.content.decode("utf-8"))[-1] == "[DONE]"
