"""The worked example of docs/cache.md runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cache.md"


def test_the_worked_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert len(blocks) == 7
    exec(compile("".join(blocks), str(PAGE), "exec"), {})
