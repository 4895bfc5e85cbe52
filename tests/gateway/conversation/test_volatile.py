"""Volatile prompts: a clock at the beginning is found, other conversations are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.volatile import MAX_CHARACTERS, MAX_TENANTS, Finding, VolatileWatch

SYSTEM = "You are a helpful assistant of the house. It is {}. Answer briefly and kindly, please."
QUESTION = ("user", "What is it?")

Messages = list[tuple[str, str]]


def clocked(time: str, role: str = "system") -> Messages:
    return [(role, SYSTEM.format(time)), QUESTION]


def see_all(
    *requests: Messages, watch: VolatileWatch | None = None, tenant: str = "t"
) -> list[Finding | None]:
    watch = watch or VolatileWatch()
    return [watch.see(tenant, messages, float(place)) for place, messages in enumerate(requests)]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_a_clock_is_found_in_the_third_request(role: str) -> None:
    first, second, third, fourth = see_all(*[clocked(f"10:0{minute}", role) for minute in range(4)])

    offset = SYSTEM.index("{}") + 4
    lost = len(SYSTEM) - 2 + 5 - offset + len(QUESTION[1])
    assert (first, second) == (None, None)
    assert third == Finding(tenant="t", message=0, offset=offset, num_lost_characters=lost, is_news=True)
    assert fourth is not None
    assert not fourth.is_news


def test_news_are_told_again_after_an_hour() -> None:
    watch = VolatileWatch()
    found = [watch.see("t", clocked(f"{place:04}"), place * 600.0) for place in range(16)]

    assert [place for place, each in enumerate(found) if each is not None and each.is_news] == [2, 8, 14]


def test_a_change_of_any_length_within_bounds_is_found() -> None:
    lengths = [1, 8, 3, 16]

    found = see_all(*[clocked(chr(97 + place) * length) for place, length in enumerate(lengths)])

    assert [each is not None for each in found] == [False, False, True, True]


@pytest.mark.parametrize(
    "requests",
    [
        [clocked("now")] * 5,
        [clocked("1"), clocked("2"), clocked("2"), clocked("3"), clocked("3")],
        [[("system", "a" * 200)], [("system", "b" * 200)], [("system", "c" * 200)]],
        [[("user", f"Translate {word}.")] for word in ("cat", "dog", "cow", "pig")],
        [[("user", "Tell me of the sea. " * place)] for place in range(4, 9)],
        [clocked("1"), clocked("2"), [("user", "a title, please")], clocked("3"), clocked("4")],
        [clocked(letter * 90) for letter in "abcde"],
        [[("system", "x" * 1000 + letter * 90 + "y")] for letter in "abcde"],
        [[("user", f"{place}" * 30 + "x" * 100 + f"{place}" * 30)] for place in range(5)],
        [[], [], []],
        [[("system", "")], [("system", "")], [("system", "")]],
        [clocked("1"), clocked("2"), [("assistant", "x"), *clocked("3")]],
    ],
)
def test_what_differs_otherwise_is_not_found(requests: list[Messages]) -> None:
    assert see_all(*requests) == [None] * len(requests)


def test_only_the_first_system_message_counts() -> None:
    found = see_all(*[[("user", f"{place}"), *clocked(f"{place}")] for place in range(3)])

    assert found[2] is not None
    assert found[2].message == 1


def test_tenants_are_watched_apart() -> None:
    watch = VolatileWatch()

    found = [
        see_all(clocked(f"{minute}"), watch=watch, tenant=tenant)[0]
        for minute in range(3)
        for tenant in ("a", "b")
    ]

    assert [each is not None for each in found] == [False] * 4 + [True, True]


def test_memory_is_bounded() -> None:
    watch = VolatileWatch()
    for tenant in range(2 * MAX_TENANTS):
        watch.see(f"{tenant}", clocked("1"), 0.0)
    huge = [[("system", f"{place}" + "x" * MAX_CHARACTERS)] for place in range(4)]

    assert len(watch._seen) == MAX_TENANTS
    assert see_all(*huge, watch=watch) == [None] * 4
    assert len(watch._seen) == MAX_TENANTS


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["system", "user"]), st.text("ab", max_size=200))), max_size=6
    )
)
def test_whatever_comes_a_finding_points_into_its_message(requests: list[Messages]) -> None:
    for messages, finding in zip(requests, see_all(*requests), strict=True):
        if finding is not None:
            assert 0 <= finding.offset < len(messages[finding.message][1])
            assert finding.num_lost_characters > 0
