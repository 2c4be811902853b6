"""The pages about devices in a browser: live without losing the place, by keyboard, and on a phone."""

import asyncio
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.console.browser import (
    PHONE,
    SCREEN,
    chromium,
    hidden_width,
    needs_browser,
    page_of,
    violations,
)
from tests.support.console.consoles import running
from tests.support.console.fleet_tables import made_settings, state_of, store_fleet, store_states
from tests.support.console.lived_in import lived_in

PAGES = ("/devices", "/devices/barn-1", "/devices/barn-7", "/enrolment", "/refusals", "/audit")
ROW = "tbody tr"


@pytest.mark.long
@needs_browser
def test_the_list_of_many_devices_is_live_and_keeps_filter_order_focus_and_place(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(2000)])
    with running(settings) as served, chromium() as browser, page_of(browser) as page:
        page.goto(f"{served.url}/devices")
        expect(page.locator(ROW)).to_have_count(100)
        expect(page.locator(".pages")).to_contain_text("1 to 100 of 2,000 devices")
        page.locator("#sort-quality").focus()
        page.keyboard.press("Enter")
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Quality")
        assert page.url.endswith("/devices?sort=quality")
        expect(page.locator("#sort-quality")).to_be_focused()
        page.locator("#status").select_option("online")
        expect(page.locator(".pages")).to_contain_text("of 1,200 devices")
        assert "sort=quality" in page.url
        assert "status=online" in page.url
        page.locator("#page-after").click()
        expect(page.locator(".pages")).to_contain_text("101 to 200")
        page.locator("#q").click()
        page.keyboard.type("barn")
        expect(page.locator(".pages")).to_contain_text("1 to 100 of 300 devices")
        assert "page" not in page.url, "another filter begins at its first page"
        page.evaluate("scrollTo(0, 700)")
        first = page.locator(ROW).first.inner_text()
        name = page.locator("tbody th a").first.inner_text()
        with settings.location.database() as store:
            store_states(
                store, [state_of(int(name[-5:]), status="online", version="9.9.9", roles=("train",))]
            )
            store_states(store, [state_of(number, status="online") for number in range(4000, 4004)])
        expect(page.locator(".pages")).to_contain_text("of 301 devices", timeout=30_000)
        assert page.locator(ROW).first.inner_text() != first, "the row itself is the new one, too"
        assert abs(page.evaluate("scrollY") - 700) < 150, "rows above may grow or go; the place is kept"
        expect(page.locator("#q")).to_be_focused()
        page.keyboard.type("x")
        expect(page.locator("main")).to_contain_text("No device matches the filter")
        assert page.locator("#q").input_value() == "barnx"
        page.goto(f"{served.url}/devices?status=offline&sort=heard&order=desc")
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("Last heard")
        assert page.locator("#status").input_value() == "offline", "an address can be shared"
        page.locator("#sort-device").click()
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Device")
        page.go_back()
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("Last heard")


@needs_browser
@pytest.mark.long
def test_every_page_is_whole_on_a_phone_and_a_screen_and_axe_finds_nothing(tmp_path: Path) -> None:
    settings = asyncio.run(lived_in(tmp_path))
    with running(settings) as served, chromium() as browser:
        for width, scheme in ((SCREEN, "light"), (PHONE, "dark"), (SCREEN, "dark"), (PHONE, "light")):
            with page_of(browser, width, scheme) as page:
                for path in PAGES:
                    page.goto(f"{served.url}{path}")
                    expect(page.locator("[data-connection=live]")).to_be_visible()
                    assert hidden_width(page) <= 0, (path, width)
                    assert violations(page) == [], (path, width, scheme)
                page.goto(f"{served.url}/sign-in")
                assert hidden_width(page) <= 0, width
                assert violations(page) == [], (width, scheme)
                page.goto(f"{served.url}/devices/barn-1")
                expect(page.locator("figure canvas").first).to_be_visible()
                assert page.locator("figure canvas").count() >= 8


@needs_browser
def test_on_a_phone_rows_are_cards_that_can_be_sorted(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(number) for number in range(200)])
    with running(settings) as served, chromium() as browser, page_of(browser, PHONE) as page:
        page.goto(f"{served.url}/devices")
        assert page.evaluate("getComputedStyle(document.querySelector('tbody tr')).display") == "block"
        page.locator("#sort").select_option("refusals")
        page.wait_for_url("**/devices?sort=refusals")
        page.locator("#order").select_option("desc")
        page.wait_for_url("**sort=refusals&order=desc")
        expect(page.locator(ROW)).to_have_count(100)
        assert hidden_width(page) <= 0


@pytest.mark.long
@needs_browser
def test_a_page_that_lost_its_tables_says_so_and_comes_back(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    with running(settings) as served, chromium() as browser, page_of(browser) as page:
        page.goto(f"{served.url}/devices")
        expect(page.locator("[role=alert]")).to_contain_text("has this coordinator ever run?")
        store_fleet(settings, [state_of(1, "barn-1")])
        expect(page.locator("tbody th")).to_have_text("barn-1", timeout=30_000)
        file = settings.state_dir / "coordinator.sqlite3"
        file.rename(file.with_suffix(".away"))
        expect(page.locator("[role=alert]")).to_contain_text("how it stood before", timeout=30_000)
        expect(page.locator("tbody th")).to_have_text("barn-1")
        file.with_suffix(".away").rename(file)
        expect(page.locator(".banner.bad")).to_have_count(0, timeout=30_000)
