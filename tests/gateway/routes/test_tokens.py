"""/tokenize, /detokenize and the rendering of chat prompts: what a request would be, without running it."""

from typing import Any

import httpx
import pytest

from engine.messages import Submit
from tests.fakes import ScriptedEngine
from tests.gateway.stored import Stored
from tests.gateway.talk import body, chat, error_of

RENDER = "/v1/chat/completions/render"
SPECIAL = "<|im_end|>"
HI = [{"role": "user", "content": "hi"}]
NAMELESS = {"type": "function", "function": {"name": ""}}


def post(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    response = client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_text_becomes_tokens_and_text_again(client: httpx.Client, engine: ScriptedEngine) -> None:
    told = post(client, "/tokenize", model="scripted", prompt="aé")

    assert told == {"count": 3, "max_model_len": 4096, "tokens": [97, 195, 169]}
    assert post(client, "/detokenize", tokens=told["tokens"]) == {"prompt": "aé"}
    assert engine.submits == []


def test_tokens_are_named_when_asked(client: httpx.Client) -> None:
    told = post(client, "/tokenize", prompt="aé", return_token_strs=True)

    assert told["token_strs"] == ["a", r"bytes:\xc3", r"bytes:\xa9"]


def test_messages_become_the_prompt_of_chat(client: httpx.Client, engine: ScriptedEngine) -> None:
    messages = body()["messages"]
    chat(client)

    told = post(client, "/tokenize", messages=messages)
    bare = post(client, "/tokenize", messages=messages, add_generation_prompt=False)

    assert told["tokens"] == engine.prompts[0]
    assert bare["tokens"] == told["tokens"][: bare["count"]]
    assert bare["count"] < told["count"]


def test_tools_are_part_of_the_prompt(client: httpx.Client, engine: ScriptedEngine) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    chat(client, tools=tools)

    told = post(client, "/tokenize", messages=body()["messages"], tools=tools)

    assert told["tokens"] == engine.prompts[0]


def test_what_a_client_spells_is_no_special_token(client: httpx.Client) -> None:
    assert post(client, "/tokenize", prompt=SPECIAL)["count"] == len(SPECIAL)


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "x"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "promt": "a"}, 400, "promt"),
        ("/tokenize", {"prompt": "a", "tools": [NAMELESS]}, 400, "tools"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"a": 1}}, 400, "chat_template_kwargs"),
        ("/tokenize", {"messages": HI, "tools": [NAMELESS]}, 400, "tools.0.function.name"),
        ("/tokenize", {"messages": HI, "chat_template_kwargs": {"a": 1}}, 400, "chat_template_kwargs.a"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, 1024]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens.0"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    client: httpx.Client, path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    assert error_of(client.post(path, json=fields), status)["param"] == param


def test_a_chat_request_is_rendered_and_not_run(client: httpx.Client, engine: ScriptedEngine) -> None:
    told = post(client, RENDER, **body())
    submits: list[Submit] = [*engine.submits]
    chat(client)

    assert submits == []
    assert told["prompt_token_ids"] == engine.prompts[0]
    assert told["text"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (told["count"], told["object"]) == (21, "chat.completion.prompt")


@pytest.mark.parametrize("fields", [{"n": 0}, {"messages": []}, {"model": "x"}, {"stop": ""}, {"top_p": 0}])
def test_rendering_refuses_what_chat_refuses(client: httpx.Client, fields: dict[str, Any]) -> None:
    refused = client.post(RENDER, json=body(**fields))

    assert refused.json() == chat(client, **fields).json()
    assert refused.status_code >= 400


def test_a_turn_is_rendered_with_its_history_and_the_session_is_free_for_it(stored: Stored) -> None:
    session = stored.new(messages=[{"role": "system", "content": "Be brief."}])

    told = post(stored.alice, RENDER, **body(session_id=session["id"]))

    assert told["text"].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi")
    assert chat(stored.alice, session_id=session["id"]).status_code == 200
    error_of(stored.bob.post(RENDER, json=body(session_id=session["id"])), 404)


def test_small_things_are_told(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/version").json() == {"version": "0"}
    assert (client.get("/ping").status_code, client.get("/ping").json()) == (200, {"status": "ok"})
    engine.is_ready = False
    assert client.get("/ping").status_code == 503
    error_of(client.post("/tokenize", json={"prompt": "a"}), 503)


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1/models"])
def test_every_answer_says_how_long_it_took(client: httpx.Client, path: str) -> None:
    assert client.get(path).headers["openai-processing-ms"].isdecimal()


def test_only_who_has_a_key_may_ask(stored: Stored) -> None:
    with httpx.Client(base_url=stored.alice.base_url) as nobody:
        for path in ("/tokenize", "/detokenize", RENDER):
            error_of(nobody.post(path, json={}), 401)
        error_of(nobody.get("/version"), 401)
        assert nobody.get("/ping").status_code == 200
