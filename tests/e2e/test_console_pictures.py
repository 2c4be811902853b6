"""The command that writes the pictures of the documents."""

import re
from pathlib import Path

import pytest

from tests.support.console.browser import needs_browser
from tests.support.console.pictures import LOOKS, PAGES, PAGES_OF_TASKS, make

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000
NAMES = {f"console-{page}-{scheme}.png" for page in (*PAGES, *PAGES_OF_TASKS) for scheme in LOOKS}


@needs_browser
@pytest.mark.long
def test_every_picture_is_made_of_a_page_that_is_whole_and_accessible(tmp_path: Path) -> None:
    assert make(tmp_path) == [], "page, CSS pixels that are cut off, findings of axe-core"
    assert {one.name: one.stat().st_size > MOST_BYTES for one in tmp_path.iterdir()} == dict.fromkeys(
        NAMES, False
    )


def test_the_stored_pictures_are_those_and_documents_show_them() -> None:
    assert {one.name: one.stat().st_size > MOST_BYTES for one in STORED.glob("console-*")} == dict.fromkeys(
        NAMES, False
    )
    shown = set()
    for page in (ROOT / "README.md", ROOT / "docs/console.md"):
        shown |= set(re.findall(r"pictures/(console-[a-z-]+\.png)", page.read_text()))
    assert shown == NAMES
