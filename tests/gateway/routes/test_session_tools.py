"""Sessions whose answers call tools: what is kept, and that the cache holds what the next turn asks for."""

from pathlib import Path

from gateway.conversation.prompt import Prompts
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.stored import fresh_prompts, stored_server
from tests.gateway.talk import chat

CALL = ('<tool_call>\n{"name": "look', '", "arguments": {', '"q": "a"}}', "\n</tool_call>")
LOOK = {"type": "function", "function": {"name": "look"}}


def test_a_session_keeps_calls_and_goes_on_from_the_very_ids(
    engine: ScriptedEngine, tokenizer: ByteTokenizer, tmp_path: Path
) -> None:
    drawn = [tokenizer.id_of(piece) for piece in CALL]

    for name, prompts in (("a", fresh_prompts(tokenizer)), ("b", fresh_prompts(tokenizer))):
        engine.scripts = [Script(drawn)]
        path = tmp_path / f"{name}.sqlite3"
        with stored_server(engine, prompts, path) as stored:
            session = stored.new()["id"]
            asked = {"session_id": session, "tools": [LOOK]}
            first = chat(stored.alice, **asked).json()["choices"][0]["message"]
        # as after a restart: nothing is remembered but what is stored
        remembered: Prompts = prompts if name == "a" else fresh_prompts(tokenizer)
        engine.scripts = [Script(list(b"Found."))]
        with stored_server(engine, remembered, path) as stored:
            result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "r"}
            answer = chat(stored.alice, messages=[result], **asked)
            told = stored.alice.get(f"/v1/sessions/{session}/messages").json()["data"]
            residency = stored.alice.get(f"/v1/sessions/{session}")

        assert answer.status_code == residency.status_code == 200
        assert [each["message"]["role"] for each in told] == ["user", "assistant", "tool", "assistant"]
        assert told[1]["message"] == {
            "role": "assistant", "content": None, "tool_calls": first["tool_calls"],
        }  # fmt: skip
        before, after = engine.prompts[-2], engine.prompts[-1]
        assert after[: len(before) + len(drawn)] == before + drawn
        located = engine.calls_of("locate")[-1]
        assert located.ids[: len(before) + len(drawn)] == before + drawn
