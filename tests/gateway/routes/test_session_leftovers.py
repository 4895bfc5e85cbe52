"""What a turn computes and its session does not keep is forgotten, before the next turn is let in."""

from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from engine.errors import EngineDied
from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.routes.test_session_turns import change, wait_until
from tests.gateway.stored import SESSIONS, Stored, stored_server
from tests.gateway.talk import CHAT, body, chat, error_of

SYSTEM = {"role": "system", "content": "Be brief."}


def canonical(stored: Stored, session_id: str) -> list[int]:
    """The ids that a session's stored messages stand for, as a park would name them."""
    engine = stored.services.engine
    assert isinstance(engine, ScriptedEngine)
    assert stored.alice.post(f"{SESSIONS}/{session_id}/park").status_code == 200
    return engine.calls_of("park")[-1].ids


def forgotten(engine: ScriptedEngine) -> tuple[list[int], int]:
    """The path that the one call named, and how much of it was kept."""
    wait_until(lambda: len(engine.calls_of("forget")) == 1)
    (call,) = engine.calls_of("forget")
    return call.ids, call.arguments["num_kept"]


def test_a_turn_that_is_kept_leaves_nothing_to_forget(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new(messages=[SYSTEM])

    for _ in range(2):
        chat(stored.alice, session_id=session["id"])

    canonical(stored, session["id"])  # waits for the turn's end
    assert engine.calls_of("forget") == []


def test_of_a_turn_whose_client_left_all_but_the_history_is_forgotten(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new(messages=[SYSTEM])
    history = canonical(stored, session["id"])
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.005

    with stored.alice.stream("POST", CHAT, json=body(stream=True, session_id=session["id"])) as response:
        next(response.iter_lines())

    path, num_kept = forgotten(engine)
    drawn = path[len(engine.prompts[0]) :]
    assert path[: len(engine.prompts[0])] == engine.prompts[0]
    assert drawn
    assert set(drawn) == {tokenizer.id_of("x")}
    assert path[:num_kept] == history
    assert engine.calls_of("forget")[0].arguments["namespace"] == engine.submits[0].namespace


def test_a_whole_answer_whose_client_left_is_forgotten(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new()
    engine.scripts = [Script([tokenizer.id_of("x")] * 3000)]
    engine.step_seconds = 0.005

    with pytest.raises(httpx.ReadTimeout):
        stored.alice.post(CHAT, json=body(session_id=session["id"]), timeout=httpx.Timeout(5, read=0.2))

    path, num_kept = forgotten(engine)
    assert path[: len(engine.prompts[0])] == engine.prompts[0]
    assert num_kept == 0


@pytest.mark.parametrize("streamed", [True, False])
def test_a_turn_that_failed_is_forgotten(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer, streamed: bool
) -> None:
    session = stored.new()
    drawn = [tokenizer.id_of("x")] * 2
    engine.scripts = [Script([*drawn, *drawn], fail_after=2)]

    chat(stored.alice, session_id=session["id"], stream=streamed)

    assert forgotten(engine) == ([*engine.prompts[0], *drawn], 0)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_turn_that_could_not_be_stored_is_forgotten(
    stored: Stored, engine: ScriptedEngine, streamed: bool
) -> None:
    session = stored.new()
    change(stored, "create trigger full before insert on session_messages begin select raise(fail, 'x'); end")

    chat(stored.alice, session_id=session["id"], stream=streamed)

    change(stored, "drop trigger full")
    assert forgotten(engine) == ([*engine.prompts[0], *engine.scripts[0].token_ids], 0)


def test_a_turn_that_another_gateway_overtook_is_forgotten(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new()
    engine.step_seconds = 0.1

    with stored.alice.stream("POST", CHAT, json=body(stream=True, session_id=session["id"])) as response:
        lines = response.iter_lines()
        next(lines)
        change(stored, "update sessions set num_turns = num_turns + 1 where id = ?", session["id"])
        rest = "".join(lines)

    assert "session_conflict" in rest
    assert forgotten(engine) == ([*engine.prompts[0], *engine.scripts[0].token_ids], 0)


def test_of_an_answer_that_a_stop_string_cut_what_was_not_sent_is_forgotten(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new()
    drawn = [tokenizer.id_of("one"), tokenizer.id_of(" STOP"), tokenizer.id_of(" more")]
    engine.scripts = [Script(drawn)]

    chat(stored.alice, session_id=session["id"], stop=" STOP")

    path, num_kept = forgotten(engine)
    history = canonical(stored, session["id"])
    assert path == [*engine.prompts[0], *drawn[:2]]
    assert num_kept < len(path)
    assert path[:num_kept] == history[:num_kept]
    assert path[num_kept] != history[num_kept]
    assert stored.messages(session["id"])[-1]["content"] == "one"


def test_the_next_turn_waits_until_it_is_forgotten(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new()
    engine.scripts = [Script([tokenizer.id_of("x")], fail_after=0)]
    chat(stored.alice, session_id=session["id"])
    engine.scripts = [Script([tokenizer.id_of("x")])]

    chat(stored.alice, session_id=session["id"])

    assert len(engine.calls_of("forget")) == 1


def test_an_engine_that_cannot_forget_is_one_line_in_the_log(
    stored: Stored, engine: ScriptedEngine, tokenizer: ByteTokenizer
) -> None:
    session = stored.new()
    engine.scripts = [Script([tokenizer.id_of("x")], fail_after=0)]
    engine.cache_failure = EngineDied("x")

    with capture_logs() as lines:
        chat(stored.alice, session_id=session["id"])
        wait_until(lambda: any(line["event"] == "session.not_forgotten" for line in lines))

    engine.cache_failure = None
    engine.scripts = [Script([tokenizer.id_of("x")])]
    assert chat(stored.alice, session_id=session["id"]).status_code == 200
    (line,) = [line for line in lines if line["event"] == "session.not_forgotten"]
    assert (line["session"], line["reason"]) == (session["id"], "EngineDied")


def test_a_session_without_a_turn_has_nothing_to_forget(stored: Stored, engine: ScriptedEngine) -> None:
    session = stored.new(messages=[SYSTEM])

    assert stored.alice.delete(f"{SESSIONS}/{session['id']}").status_code == 200

    assert engine.calls_of("forget") == []


def test_a_session_is_forgotten_though_no_template_takes_what_its_fork_shares(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    needs_a_user = (
        "{% if messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}"
        "{{ raise_exception('no user') }}{% endif %}"
    )
    with stored_server(
        engine, prompts_of(tokenizer, needs_a_user + CHATML), tmp_path / "x.sqlite3"
    ) as stored:
        session = stored.new(messages=[SYSTEM])
        chat(stored.alice, session_id=session["id"])
        stored.alice.post(f"{SESSIONS}/{session['id']}/fork", json={"up_to": 1})

        assert stored.alice.delete(f"{SESSIONS}/{session['id']}").status_code == 200

    path, num_kept = forgotten(engine)
    assert path[: len(engine.prompts[0])] == engine.prompts[0]
    assert num_kept == 0


def test_a_session_that_no_template_takes_any_more_is_forgotten_as_far_as_one_does(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "x.sqlite3"
    with stored_server(engine, prompts_of(tokenizer, CHATML), path) as stored:
        session = stored.new(messages=[SYSTEM])
        chat(stored.alice, session_id=session["id"])
    no_answers = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + CHATML

    with stored_server(engine, prompts_of(tokenizer, no_answers), path) as stored:
        error_of(stored.alice.post(f"{SESSIONS}/{session['id']}/park"), 400)
        assert stored.alice.delete(f"{SESSIONS}/{session['id']}").status_code == 200

    ids, num_kept = forgotten(engine)
    assert (ids, num_kept) == (engine.prompts[0][: len(ids)], 0)
    assert len(ids) > len(b"system\nBe brief.\n")


def prompts_of(tokenizer: ByteTokenizer, template: str) -> Prompts:
    end = tokenizer.special_tokens["<|im_end|>"]
    return Prompts(TextModel(tokenizer, ChatTemplate(template), (end,)), transcript_bytes=1 << 20)
