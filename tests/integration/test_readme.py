"""README's examples for the SDK, run as they stand against the default model."""

import re
from pathlib import Path

import pytest

from tests.served import ServedModel

README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# What stands in an example, and what it must print.
ASKED = {
    "stream=True": "The capital of France is Paris.",
    "response_format=City": "Paris",
    "tools=tools": "get_weather",
    "prewarm": "cached",
}


@pytest.mark.parametrize("words", ASKED)
def test_an_example_runs_as_it_stands(
    words: str, live_server: ServedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = (each for each in EXAMPLES if words in each)
    served = example.replace("http://127.0.0.1:8000", live_server.url).replace(
        "SmolLM2-135M-Instruct", live_server.model
    )

    exec(compile(served, "README.md", "exec"), {"__name__": "__main__"})

    assert ASKED[words] in capsys.readouterr().out
