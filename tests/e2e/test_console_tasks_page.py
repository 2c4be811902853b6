"""The pages of several tasks in a browser: the menu of tasks, live, by keyboard, on a phone and a screen."""

import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from coordinator.config.coordinator import load_settings
from coordinator.fleet.task_reports import META, TaskReport, encode_reports
from coordinator.round_machine.events import RoundPhase
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
from tests.support.console.history import History
from tests.support.console.several_tasks import DOOR, SOUND, several_tasks

PAGES = (
    "/tasks",
    "/tasks/sound",
    "/tasks/sound/rounds",
    "/tasks/sound/devices/both",
    "/tasks/door",
    "/audit",
)
MENU = "details.switch"
BOUND_MS = 60_000


@needs_browser
@pytest.mark.long
def test_every_page_is_whole_and_axe_finds_nothing_with_the_menu_open(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path)
    with settings.location.database() as store, running(settings) as served, chromium() as browser:
        why = "door.toml: modalities: one or more are needed (a task on knowledge graphs has a table [graph])"
        failed = TaskReport(state="failed", why=why, again=time.time() + 300)
        for reports in ({}, {DOOR: failed, SOUND: failed}):
            store.put_meta({META: encode_reports(reports)})
            for width, scheme in ((SCREEN, "light"), (PHONE, "dark"), (SCREEN, "dark"), (PHONE, "light")):
                with page_of(browser, width, scheme) as page:
                    for path in PAGES if not reports else ("/tasks",):
                        page.goto(f"{served.url}{path}")
                        expect(page.locator("[data-connection=live]")).to_be_visible()
                        page.locator(f"{MENU} > summary").click()
                        expect(page.locator(f"{MENU} li")).to_have_count(4)
                        assert hidden_width(page) <= 0, (path, width)
                        assert violations(page) == [], (path, width, scheme)


@needs_browser
@pytest.mark.long
def test_the_menu_leads_to_the_same_page_of_another_task_by_keyboard(tmp_path: Path) -> None:
    settings = several_tasks(tmp_path)
    with running(settings) as served, chromium() as browser, page_of(browser) as page:
        page.goto(f"{served.url}/rounds/2")
        page.locator(f"{MENU} > summary").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        expect(page.locator(f"{MENU} ul")).to_be_hidden()
        expect(page.locator(f"{MENU} > summary")).to_be_focused()
        page.keyboard.press("Enter")
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tasks/sound/rounds")
        expect(page.locator(f"{MENU} > summary")).to_have_text("Task sound")
        expect(page.locator("nav a[aria-current]")).to_have_text("Rounds")
        page.locator(f"{MENU} > summary").click()
        page.locator("h1").click()
        expect(page.locator(f"{MENU} ul")).to_be_hidden()


@needs_browser
@pytest.mark.long
def test_pages_of_tasks_follow_their_tables_and_the_file(tmp_path: Path) -> None:
    made = several_tasks(tmp_path)
    file = tmp_path / "coordinator.toml"
    text = f'fleet = "test"\nstate_dir = "{made.state_dir}"\ntask = "task.toml"\n'
    sound = '[[tasks]]\nname = "sound"\ntask = "sound.toml"\n'
    file.write_text(text + sound)
    with (
        running(load_settings(file), config=file) as served,
        chromium() as browser,
        page_of(browser) as all_tasks,
    ):
        one = browser.new_page()  # htmx logs that its stream is refused in the end
        all_tasks.goto(f"{served.url}/tasks")
        expect(all_tasks.locator("tbody tr")).to_have_count(2, timeout=BOUND_MS)
        one.goto(f"{served.url}/tasks/sound/rounds")
        expect(one.locator("[data-connection=live]")).to_be_visible(timeout=BOUND_MS)
        expect(one.locator(".pages")).to_have_text("1 to 2 of 2 rounds", timeout=BOUND_MS)
        with History(made.for_task(SOUND)) as history:
            history.clock.set_wall(time.time())
            history.opens(3, ["both"])
            history.stands(RoundPhase.COLLECTING, 3, 2, selected=("both",), until=time.time() + 600)
        expect(one.locator(".pages")).to_have_text("1 to 3 of 3 rounds", timeout=BOUND_MS)
        expect(all_tasks.locator("main")).to_contain_text("collecting", timeout=BOUND_MS)
        file.write_text(text + sound + '[[tasks]]\nname = "door"\ntask = "door.toml"\n')
        expect(all_tasks.locator("tbody tr")).to_have_count(3, timeout=BOUND_MS)
        file.write_text(text)
        expect(one.locator("h1")).to_have_text("No such task", timeout=BOUND_MS)
        expect(all_tasks.locator("tbody tr")).to_have_count(1, timeout=BOUND_MS)
