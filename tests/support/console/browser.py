"""Pages in Debian's Chromium, driven by playwright, and judged by axe-core."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="SKIPPED LOUDLY: no chromium")
PHONE, SCREEN = 360, 1440
_ABORTED = ("htmx:afterRequest,", "htmx:sendAbort,")
_AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, width: int = SCREEN, scheme: str = "light") -> Iterator[Page]:
    """A page of its own; errors of its scripts, and of its policy, fail the test at its end.

    A request that a newer one replaces, or the page's end cuts off, is none of them: htmx reports it by the
    two events of :data:`_ABORTED`. A request that fails has an event of its own beside the first.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if _is_error(said) else None)
    try:
        yield page
        assert errors == [], errors
    finally:
        context.close()


def _is_error(said: ConsoleMessage) -> bool:
    return said.type == "error" and not said.text.startswith(_ABORTED)


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe-core finds wrong: rule, impact, and the first element."""
    page.evaluate(_AXE.read_text())
    found: Any = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found["violations"]]


def hidden_width(page: Page) -> int:
    """CSS pixels that are cut off at the side, or need scrolling."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))
