"""The journal: bounded, and silent of requests that have nothing to tell."""

import pytest

from engine.cache_messages import CacheReport
from gateway.conversation.volatile import Finding
from gateway.journal import MAX_REQUESTS, MAX_WARNINGS, Journal
from gateway.paging import Paging, UnknownCursor
from gateway.record import RequestRecord

REPORT = CacheReport(num_computed_tokens=3, parted_at=2, reason="new")


def record(number: int, report: CacheReport | None = REPORT) -> RequestRecord:
    return RequestRecord(request_id="r", tenant="t", completion_id=f"c{number}", cache=report)


def test_the_last_thousand_requests_are_kept() -> None:
    journal = Journal()
    for number in range(MAX_REQUESTS + 5):
        journal.add(record(number))

    oldest = journal.requests(Paging(order="asc", limit=1))
    newest = journal.requests(Paging(limit=2))

    assert [each.id for each in oldest.items] == ["c5"]
    assert [each.id for each in newest.items] == ["c1004", "c1003"]
    assert newest.has_more
    assert MAX_REQUESTS == 1000
    with pytest.raises(UnknownCursor):
        journal.requests(Paging(after="c1"))


def test_the_last_page_says_so() -> None:
    journal = Journal()
    for number in range(3):
        journal.add(record(number))

    page = journal.requests(Paging(limit=2, after="c2"))

    assert ([each.id for each in page.items], page.has_more) == (["c1", "c0"], False)


def test_a_request_without_a_report_is_left_out() -> None:
    journal = Journal()

    journal.add(record(1, None))
    journal.add(RequestRecord(request_id="r", tenant="t", cache=REPORT))

    assert journal.requests(Paging()).items == []


def test_where_nothing_parted_no_place_is_told() -> None:
    journal = Journal()

    journal.add(record(1, CacheReport(num_device_tokens=9)))

    (entry,) = journal.requests(Paging()).items
    assert (entry.parted_at, entry.reason, entry.tokens.device) == (None, "none", 9)


def test_warnings_are_bounded_too() -> None:
    journal = Journal()
    for number in range(MAX_WARNINGS + 1):
        journal.warn(Finding(tenant=f"{number}", message=0, offset=1, num_lost_characters=2, is_news=True))

    oldest = journal.warnings(Paging(order="asc", limit=1)).items

    assert [(each.id, each.tenant, each.lost_characters) for each in oldest] == [("warn_2", "1", 2)]
