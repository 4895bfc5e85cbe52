"""The lengths of real chat requests: Azure's conversation trace of 2023.

The file is AzureLLMInferenceTrace_conv.csv of the Azure public dataset (CC-BY 4.0): arrival, tokens of the
context, tokens generated.
"""

import csv
from pathlib import Path
from typing import NamedTuple

__all__ = ["Lengths", "read_azure"]


class Lengths(NamedTuple):
    """One request, in tokens."""

    num_prompt: int
    num_answer: int


def read_azure(path: Path, count: int, max_tokens: int) -> list[Lengths]:
    """The first `count` requests of which prompt and answer together have at most `max_tokens`.

    Raises OSError, and ValueError for a file of another form.
    """
    found: list[Lengths] = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"ContextTokens", "GeneratedTokens"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} has no columns ContextTokens and GeneratedTokens")
        for row in rows:
            lengths = Lengths(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            if min(lengths) > 0 and sum(lengths) <= max_tokens:
                found.append(lengths)
            if len(found) == count:
                break
    return found
