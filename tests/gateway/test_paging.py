"""Pages: what may be asked for, and what never reaches a database."""

import pytest

from gateway.errors import InvalidRequest
from gateway.paging import Page, Paging, UnknownCursor, list_of, parse_paging


def test_what_is_left_out_has_a_default() -> None:
    assert parse_paging({}) == Paging(limit=20, order="desc", after=None)
    assert parse_paging({"after": ""}, order="asc") == Paging(limit=20, order="asc", after=None)


def test_a_page_may_be_chosen() -> None:
    assert parse_paging({"limit": "100", "order": "asc", "after": "sess_0a-1"}) == Paging(
        limit=100, order="asc", after="sess_0a-1"
    )


@pytest.mark.parametrize("cursor", ["a\x00b", "' or 1=1 --", "é", "x" * 65, "a b"])
def test_a_cursor_that_can_be_no_id_is_not_looked_up(cursor: str) -> None:
    with pytest.raises(UnknownCursor):
        parse_paging({"after": cursor})


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "-1"}, {"limit": "1e1"}, {"order": ""}]
)
def test_a_page_that_cannot_be_is_refused_by_name(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_paging(query)

    assert refusal.value.param == next(iter(query))


def test_one_item_more_says_that_there_are_more() -> None:
    assert Page.cut([1, 2, 3], 2) == Page([1, 2], has_more=True)
    assert Page.cut([1, 2], 2) == Page([1, 2], has_more=False)


def test_an_empty_page_has_no_ids() -> None:
    page = list_of([], [], has_more=False)

    assert (page.first_id, page.last_id) == (None, None)
