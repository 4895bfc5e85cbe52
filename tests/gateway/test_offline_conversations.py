"""What a script may hand to `LLM.chat`: what is no conversation is refused, never taken for an empty one."""

from typing import Any

import pytest

from gateway.offline import LLM
from tests.fakes import ByteTokenizer
from tests.gateway.scripted_core import ScriptedCore
from tests.gateway.stored import fresh_prompts

HI = {"role": "user", "content": "hi"}


def llm(core: ScriptedCore) -> LLM:
    return LLM.over(core, fresh_prompts(ByteTokenizer()))


@pytest.mark.parametrize(
    "messages",
    ["hi", [[]], [[HI], []], ["a", "b"], [HI, "b"], [HI, [HI]], [[HI], HI], [[HI, "b"]], [5],
     [{"role": "x", "content": "a"}], [{"role": "user", "content": 5}], [{"content": "a"}],
     [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "user", "content": ["a"]}]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_conversation_is_refused_before_anything_runs(messages: Any) -> None:
    core = ScriptedCore(["a"])

    with pytest.raises(ValueError, match=r"conversation|role"):
        llm(core).chat(messages, use_tqdm=False)

    assert core.submits == []


def test_no_conversations_have_no_answers() -> None:
    assert llm(ScriptedCore(["a"])).chat([], use_tqdm=False) == []


@pytest.mark.parametrize("kind", [list, tuple])
def test_any_sequence_will_do(kind: type) -> None:
    told = llm(ScriptedCore(["a"])).chat(kind([kind([HI]), kind([HI, HI])]), use_tqdm=False)

    assert [each.outputs[0].text for each in told] == ["a", "a"]
