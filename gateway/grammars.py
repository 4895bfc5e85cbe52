"""What clients write to say how an answer must read, as grammars of one kind: Lark's, as llguidance has it.

A part stands on the right of a rule; `whole` makes a grammar of one. Everything is looked at before it is
sent to the engine, which does not have to read what cannot be read.
"""

import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from gateway.errors import InvalidRequest

__all__ = ["choice_part", "first_fault", "lark_part", "literal", "regex_part", "whole"]

_MAX_CHARACTERS = 100_000
_MAX_CHOICES = 900
_DIRECTIVES = re.compile("%(llguidance|json|lark|regex)")
_SCHEMA_PREFIX = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ")


def whole(part: str) -> str:
    """The grammar of exactly what a part allows."""
    return f"start: {part}"


def literal(text: str) -> str:
    """A part that is one text."""
    return json.dumps(text) if text else '""'


def regex_part(regex: str, *, path: str) -> str:
    """The texts that a regular expression matches from beginning to end. Raises InvalidRequest."""
    _check_length(regex, path)
    part = "/" + regex.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n") + "/"
    _check(whole(part), path)
    return part


def choice_part(choices: Sequence[str], *, path: str) -> str:
    """One of some texts. Raises InvalidRequest."""
    if not 0 < len(choices) <= _MAX_CHOICES or not all(choices):
        raise InvalidRequest(f"{path} must have 1 to {_MAX_CHOICES:,} texts, none of them empty.", param=path)
    for each in choices:
        _check_length(each, path)
    return " | ".join([literal(each) for each in choices])


def lark_part(text: str, *, path: str) -> str:
    """What a client's own grammar allows, written in Lark's form or in GBNF. Raises InvalidRequest."""
    _check_length(text, path)
    if (found := _DIRECTIVES.search(text)) is not None:
        raise InvalidRequest(f"{path} must not have {found[0]}; leave it out.", param=path)
    try:
        grammar: str = any_to_lark(text).removeprefix("%llguidance {}")
    except Exception as error:  # noqa: BLE001 - the converter raises nothing more special
        raise InvalidRequest(f"{path} cannot be read: {error}"[:400], param=path) from None
    _check(grammar, path)
    return f"%lark {{\n{grammar}\n}}"


def first_fault(grammar: str) -> str | None:
    """Why a grammar cannot be read, in one line of the library's; None if it can."""
    words = LLMatcher.validate_grammar(grammar).strip()
    if not words:
        return None
    lines = words.splitlines()
    told = next((line for line in lines if line.startswith("error: ")), lines[0])
    return _SCHEMA_PREFIX.sub("", told.removeprefix("error: "))[:300]


def _check(grammar: str, path: str) -> None:
    if (fault := first_fault(grammar)) is not None:
        raise InvalidRequest(f"{path} cannot be followed: {fault}", param=path)


def _check_length(text: str, path: str) -> None:
    if len(text) > _MAX_CHARACTERS:
        raise InvalidRequest(
            f"{path} has {len(text):,} characters; at most {_MAX_CHARACTERS:,} are read.", param=path
        )
