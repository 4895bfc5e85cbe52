"""What flags may say, and in which words the rest is refused."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flags import amount, api_url, json_object, natural, output_file, output_folder, positive, rate


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (positive, "1", 1),
        (natural, "0", 0),
        (rate, "0.5", 0.5),
        (amount, "0", 0.0),
        (json_object, '{"a": 1}', {"a": 1}),
        (api_url, "http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
    ],
)
def test_what_can_be_meant_is_taken(kind: Callable[[str], Any], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (positive, "0", "0 is less than 1"),
        (positive, "x", "x is no whole number"),
        (natural, "-1", "-1 is less than 0"),
        (rate, "0", "0 is not a number above 0"),
        (rate, "nan", "nan is not a number above 0"),
        (rate, "inf", "inf is not a number above 0"),
        (rate, "x", "x is no number"),
        (amount, "-0.5", "-0.5 is not a number from 0 up"),
        (json_object, "[", r"\[ is no JSON: "),
        (json_object, "[1]", r"\[1\] is no JSON object"),
        (api_url, "localhost:8000", "'localhost:8000' is no http:// or https:// address"),
        (api_url, "http://host:0", "port 0"),
        (api_url, "http://user:word@host/v1", "more than host, port and path"),
        (api_url, "http://host/v1?x=1", "more than host, port and path"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(kind: Callable[[str], Any], text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        kind(text)


def test_an_output_is_looked_at_before_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"

    assert output_file(str(path)) == path
    assert output_folder(str(tmp_path)) == tmp_path
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is a folder"), (".", "is a folder"), ("missing/figures.json", "there is no folder")],
)
def test_an_output_that_cannot_be_written_is_refused(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        output_file(text)
