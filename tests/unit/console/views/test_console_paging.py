"""Lists by pages: addresses that can be shared, bounds, and words for what an address asks in vain."""

from typing import Literal

import pytest
from starlette.requests import Request

from console.views.paging import Listing, ListQuery, query_of, unchanged
from protocol.errors import Refused


class _Query(ListQuery):
    sort: Literal["name", "age"] = "name"
    status: str = ""


def request(query: str, shown: str | None = None) -> Request:
    headers = [] if shown is None else [(b"x-lichen-shown", shown.encode())]
    return Request(
        {"type": "http", "query_string": query.encode(), "headers": headers, "path": "/", "method": "GET"}
    )


def listing(query: str, count: int) -> Listing[int]:
    return Listing("/things", query_of(request(query), _Query), range(count))


def test_console_page_of_a_list() -> None:
    first, second = listing("", 250), listing("page=3", 250)
    assert (list(first.rows), first.pages, first.first, first.last) == (list(range(100)), 3, 1, 100)
    assert (list(second.rows), second.first, second.last) == (list(range(200, 250)), 201, 250)
    beyond, none = listing("page=900000", 250), listing("page=2", 0)
    assert (beyond.number, list(beyond.rows)) == (3, list(range(200, 250)))
    assert (none.number, none.pages, none.total, list(none.rows)) == (1, 1, 0, [])


def test_console_addresses_keep_filter_and_sort_and_nothing_else() -> None:
    page = listing("status=online&q=a%26b&page=2&foreign=1", 250)
    assert page.address() == "/things?q=a%26b&status=online&page=2" or set(
        page.address().partition("?")[2].split("&")
    ) == {"q=a%26b", "status=online", "page=2"}
    assert listing("", 250).address() == "/things"
    assert listing("", 250).address(page=2) == "/things?page=2"
    assert "page" not in page.sorted_by("age"), "another order begins at its first page"
    assert "order=desc" not in page.sorted_by("age")
    assert "order=desc" in page.sorted_by("age", "desc")
    assert "order=desc" in page.sorted_by("name"), "the same column again: the other way round"
    assert "order" not in listing("order=desc", 1).sorted_by("name")


@pytest.mark.parametrize(
    "query", ["page=0", "page=x", "page=99999999999", "sort=secret", "order=up", "q=" + "x" * 101]
)
def test_console_an_address_that_asks_in_vain_is_refused_in_words(query: str) -> None:
    with pytest.raises(Refused) as refused:
        query_of(request(query), _Query)
    assert query.partition("=")[0] in refused.value.detail


def test_console_a_region_that_has_the_content_gets_none() -> None:
    same = unchanged(request("", "abc"), "abc")
    assert same is not None
    assert (same.status_code, same.body) == (204, b"")
    assert unchanged(request("", "abc"), "abd") is None
    assert unchanged(request(""), "abd") is None
