"""Many tabs of one browser follow a console over HTTP/1.1, which gives them six connections."""

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from coordinator.storage import schema
from tests.support.console.browser import chromium, needs_browser
from tests.support.console.consoles import running
from tests.support.console.fleet_tables import made_settings, state_of, store_fleet, store_states

TABS = 9
BOUND_MS = 30_000


def shows(page: Page, name: str) -> None:
    expect(page.locator("tbody")).to_contain_text(name, timeout=BOUND_MS)


@needs_browser
@pytest.mark.long
def test_more_tabs_than_connections_all_follow_by_one_stream(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(1, "barn-1")])
    with running(settings) as served, chromium() as browser:
        context = browser.new_context()
        errors: list[str] = []
        tabs = [context.new_page() for _ in range(TABS)]
        for page in tabs:
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
            page.goto(f"{served.url}/devices")
            expect(page.locator("[data-connection=live]")).to_be_visible(timeout=BOUND_MS)
            page.evaluate("window.loadedOnce = true")
        events = served.events
        assert events.viewers == 1, "of all tabs"
        for name in ("barn-2", "barn-3"):
            with settings.location.database() as store:
                store_states(store, [state_of(2, name)])
            for page in tabs:
                shows(page, name)
        for page in tabs[1:]:
            page.close()
        with settings.location.database() as store:
            store.remove(schema.devices, device="barn-2")
        expect(tabs[0].locator("tbody")).not_to_contain_text("barn-2", timeout=BOUND_MS)
        tabs[0].goto(f"{served.url}/versions")
        expect(tabs[0].locator("[data-connection=live]")).to_be_visible()
        tabs[0].goto("about:blank")
        end = time.monotonic() + 30
        while events.viewers and time.monotonic() < end:
            time.sleep(0.1)
        assert events.viewers == 0, "the stream ends with its last tab"
        assert errors == []
        context.close()


@needs_browser
@pytest.mark.long
def test_tabs_come_back_to_a_console_that_was_away_and_say_so_meanwhile(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(1, "barn-1")])
    with chromium() as browser:
        context = browser.new_context()
        with running(settings) as served:
            port = int(served.url.rpartition(":")[2])
            tabs = [context.new_page() for _ in range(2)]
            for page in tabs:
                page.goto(f"{served.url}/devices")
                expect(page.locator("[data-connection=live]")).to_be_visible(timeout=BOUND_MS)
        for page in tabs:
            expect(page.locator("[data-connection=lost]")).to_be_visible(timeout=BOUND_MS)
        with settings.location.database() as store:
            store_states(store, [state_of(2, "barn-2")])
        with running(settings, listen=f"127.0.0.1:{port}"):
            for page in tabs:
                expect(page.locator("[data-connection=live]")).to_be_visible(timeout=2 * BOUND_MS)
                shows(page, "barn-2")
        context.close()


@needs_browser
@pytest.mark.long
def test_a_browser_without_shared_workers_has_a_stream_for_each_tab(tmp_path: Path) -> None:
    settings = made_settings(tmp_path)
    store_fleet(settings, [state_of(1, "barn-1")])
    with running(settings) as served, chromium() as browser:
        context = browser.new_context()
        context.add_init_script("delete window.SharedWorker")
        for _ in range(2):
            page = context.new_page()
            page.goto(f"{served.url}/devices")
            expect(page.locator("[data-connection=live]")).to_be_visible(timeout=BOUND_MS)
        assert served.events.viewers == 2
        context.close()
