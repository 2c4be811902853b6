"""Checks a page of ours as a browser would."""

import re
from html.parser import HTMLParser


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br", "hr", "img", "link", "input"}:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - HTMLParser's
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_whole(page: str) -> None:
    """Every tag is closed, no id is used twice, links lead into the page, and nothing is fetched or run.

    Pictures are part of the page.
    """
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids)), "two figures share an id"
    assert not [mark for mark in tags.ids if " " in mark], "no link finds an id with a space"
    links = {link for link in tags.links if not link.startswith("data:image/png;base64,")}
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} | set(re.findall(r'url\(#([^")]+)', page)) <= set(tags.ids)
    assert not re.search(r"url\(http|@import", page)
    assert "<script" not in page
