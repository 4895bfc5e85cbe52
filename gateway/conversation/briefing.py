"""What a chat template is told beside the messages: the tools that may be called, and words of its own.

Both stand in the prompt, so an answer is remembered, explained and forgotten together with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NOTHING", "Briefing"]


@dataclass(frozen=True, slots=True)
class Briefing:
    """Nothing, by default; then a prompt is what it would be without one."""

    tools: Sequence[Mapping[str, Any]] = ()  # as chat templates expect them
    words: Mapping[str, Any] = field(default_factory=dict)  # variables of the template, by name

    def __bool__(self) -> bool:
        return bool(self.tools or self.words)


NOTHING = Briefing()
