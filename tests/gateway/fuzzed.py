"""Schemathesis asks every operation of a scripted server what its description allows, and what it does not.

Run by `make test-described`, which installs it into an environment of its own. Nothing may fail inside the
server, and no status, media type or body may be another than the description names. Streams of events that
have no end are left out.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.conversation.prompt import Prompts
from gateway.conversation.template import CHATML, ChatTemplate
from gateway.conversation.text_model import TextModel
from tests.fakes import ByteTokenizer, Script, ScriptedEngine
from tests.gateway.stored import ALICE, stored_server

SCHEMATHESIS = Path(f"{sys.prefix}-described") / "bin" / "schemathesis"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_one_that_is_described(tmp_path: Path, mode: str) -> None:
    tokenizer = ByteTokenizer()
    prompts = Prompts(TextModel(tokenizer, ChatTemplate(CHATML), (257,)), transcript_bytes=1 << 20)
    engine = ScriptedEngine([Script([tokenizer.id_of(text) for text in ("Hello", ", ", "world")])])
    with stored_server(engine, prompts, tmp_path / "stemma.sqlite3") as stored:
        command = [
            SCHEMATHESIS, "run", f"{stored.alice.base_url}/openapi.json", "--checks", CHECKS, "--mode", mode,
            "--header", f"Authorization: Bearer {ALICE}", "--phases", "coverage,fuzzing",
            "--max-examples", "50", "--exclude-path", "/admin/cache/events", "--request-timeout", "10",
            "--seed", "1", "--suppress-health-check", "all", "--generation-database", "none",
        ]  # fmt: skip
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
