"""A live region in a browser: what is the same stays, the rest is replaced, and its links still ask."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.support.console.consoles import running
from tests.support.console.fleet_tables import made_settings, state_of, store_fleet, store_states
from tests.support.lab.browser import CHROMIUM, needs_chromium

_ROWS = (
    "() => [...document.querySelectorAll('#live tbody tr')].map((one) => one.querySelector('th').innerText)"
)
_STAYED = "() => [...document.querySelectorAll('#live tbody tr')].filter((one) => one.wasThere).length"
_MARK = """() => {
  for (const one of document.querySelectorAll('#live, #live tbody tr')) one.wasThere = true;
  document.getElementById('d-device-00007').focus();
}"""


def has_rows(page: Page, count: int) -> None:
    expect(page.locator("#live tbody tr")).to_have_count(count, timeout=30_000)


def has_words(page: Page, device: str, words: str) -> None:
    row = page.locator("#live tbody tr", has=page.locator(f"#d-{device}"))
    expect(row).to_contain_text(words, timeout=30_000)


@needs_chromium
def test_console_news_replace_only_what_has_changed(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(30)])
    with running(settings) as console, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(console.url + "/devices")
        page.locator("[data-connection=live]").wait_for()
        page.evaluate(_MARK)
        with settings.location.database() as store:
            store_states(store, [state_of(3, labels={"site": "a new one"})])
            has_words(page, "device-00003", "site: a new one")
            assert page.evaluate(_STAYED) == 29
            assert page.evaluate("document.activeElement.id") == "d-device-00007"
            assert page.evaluate("document.getElementById('live').wasThere"), "the region itself stays"

            page.locator("#sort-labels").click()
            page.locator("th[aria-sort]", has_text="Labels").wait_for()
            ascending = page.evaluate(_ROWS)
            assert page.evaluate("document.activeElement.id") == "sort-labels", "a new link with the focus"
            page.locator("#sort-labels").click()
            page.locator("th[aria-sort=descending]").wait_for()
            assert sorted(page.evaluate(_ROWS)) == sorted(ascending)
            assert page.evaluate(_ROWS) != ascending
            assert page.evaluate("location.search") == "?sort=labels&order=desc"

            store_states(store, [state_of(3, labels={"site": "another"}), state_of(77)])
            has_words(page, "device-00003", "site: another")
            has_rows(page, 31)
            page.locator("#q").fill("00077")
            has_rows(page, 1)
            page.locator("#q").fill("nobody")
            page.get_by_text("No device matches the filter").wait_for()
            page.locator("#q").fill("")
            has_rows(page, 31)
            page.go_back()
            expect(page).to_have_title(re.compile("^Devices"), timeout=30_000)
            has_rows(page, 31)
        assert broken == []
        browser.close()
