"""Stop strings: what comes through depends on the text alone, and nothing is held back without need."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.stop import StopMatcher, StopStrings

# few letters, so that stop strings overlap each other, themselves and the text
letters = st.text("ab", max_size=30)
stops_of_letters = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def until_stop(text: str, stops: list[str], include_stop: bool) -> tuple[str, bool]:
    """The plain rule: at the first end of any stop string, cut before the longest that ends there."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            return text[: end if include_stop else end - max(map(len, hits))], True
    return text, False


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, bool]:
    sent = "".join(matcher.push(piece)[0] for piece in pieces)
    return sent + matcher.flush(), matcher.matched is not None


@given(letters, stops_of_letters, st.booleans(), st.data())
def test_any_cutting_gives_what_the_whole_text_gives(
    text: str, stops: list[str], include: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert run(StopMatcher(StopStrings(stops), include), pieces) == until_stop(text, stops, include)


@given(letters, stops_of_letters)
def test_only_the_head_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher, sent = StopMatcher(StopStrings(stops), False), ""
    for position, character in enumerate(text, start=1):
        sent += matcher.push(character)[0]
        if matcher.matched is not None:
            break
        held = text[len(sent) : position]
        ends = [text[:position].endswith(stop[:k]) and k for stop in stops for k in range(len(stop))]
        assert len(held) == max(ends, default=0)


def test_one_stop_string_cuts_like_split() -> None:
    assert run(StopMatcher(StopStrings(["STOP"])), ["one S", "TOP", " two STOP"]) == ("one ", True)


def test_a_head_that_comes_to_nothing_is_sent_at_the_end() -> None:
    matcher = StopMatcher(StopStrings(["DEFG"]))

    assert matcher.push("ABCDE") == ("ABC", False)
    assert matcher.push("X") == ("DEX", False)
    assert matcher.push("D") == ("", False)
    assert matcher.flush() == "D"
    assert matcher.flush() == ""


def test_the_longer_of_two_that_end_together_wins() -> None:
    assert run(StopMatcher(StopStrings(["c", "abc"])), ["xabc"]) == ("x", True)


def test_nothing_comes_through_after_the_stop() -> None:
    matcher = StopMatcher(StopStrings(["."]), include_stop=True)

    assert matcher.push("a.b") == ("a.", True)
    assert matcher.push("c") == ("", True)
    assert matcher.flush() == ""
    assert matcher.matched == "."


def test_without_stop_strings_all_text_passes_at_once() -> None:
    assert StopMatcher(StopStrings([])).push("abc") == ("abc", False)
