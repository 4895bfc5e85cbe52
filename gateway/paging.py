"""Pages of lists, as the protocol has them: what a client asks for, and what it gets.

A page begins after the item whose id is `after`, in the order that was asked for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from gateway.errors import InvalidRequest

__all__ = ["MAX_LIMIT", "ListObject", "Order", "Page", "Paging", "UnknownCursor", "list_of", "parse_paging"]

T = TypeVar("T")
Order = Literal["asc", "desc"]

MAX_LIMIT = 100
_DEFAULT_LIMIT = 20
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class UnknownCursor(InvalidRequest):
    """`after` names nothing in the list."""

    def __init__(self) -> None:
        super().__init__("after names nothing in this list; use the last_id of a page of it.", param="after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Which part of a list is wanted."""

    limit: int = _DEFAULT_LIMIT
    order: Order = "desc"
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and whether it goes on."""

    items: list[T]
    has_more: bool = False

    @classmethod
    def cut(cls, items: Sequence[T], limit: int) -> "Page[T]":
        """The page of at most `limit` items; one item more says that there are more."""
        return cls(list(items[:limit]), len(items) > limit)


class ListObject(msgspec.Struct, frozen=True, kw_only=True):
    """A page on the wire."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def parse_paging(query: Mapping[str, str], *, order: Order = "desc") -> Paging:
    """`limit`, `order` and `after` of a query string; `order` is the default. Raises InvalidRequest."""
    asked = query.get("order", order)
    if asked not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc.", param="order")
    return Paging(
        limit=_limit(query.get("limit")),
        order="asc" if asked == "asc" else "desc",
        after=_cursor(query.get("after")),
    )


def list_of(data: Sequence[Any], ids: Sequence[str], *, has_more: bool) -> ListObject:
    """The list object of a page; `ids` are those of `data`."""
    return ListObject(
        data=list(data),
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def _cursor(text: str | None) -> str | None:
    # only what could be an id is looked up: databases differ in what strings they take
    if text and not _ID.fullmatch(text):
        raise UnknownCursor
    return text or None


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and 1 <= int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"limit must be an integer from 1 to {MAX_LIMIT}.", param="limit")
    return int(text)
