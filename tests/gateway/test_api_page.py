"""docs/api.md names what the code refuses and accepts."""

from pathlib import Path

import pytest

from gateway.wire.chat_request import ChatRequest
from gateway.wire.unserved import HINTS

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*ChatRequest.model_fields, *HINTS}))
def test_every_known_field_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name}." in PAGE
