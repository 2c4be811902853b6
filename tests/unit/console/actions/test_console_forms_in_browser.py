"""Forms of actions in a real browser, by keyboard: opened, left, sent, answered on the page, and refused."""

import time

import pytest
from playwright.sync_api import sync_playwright

from coordinator.actions import people, rollouts
from coordinator.admission.operator_orders import read_order
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.rollout.view import read_rollouts
from tests.support.console.consoles import ADMIN, running, with_tables
from tests.support.coordinator.rollouts import plan, release
from tests.support.lab.browser import CHROMIUM, needs_chromium

OPEN = "details.act[open]"


def button(page, words: str):
    return page.locator("details.act > summary", has_text=words).first


@needs_chromium
@pytest.mark.parametrize("width", [360, pytest.param(1440, marks=pytest.mark.long)])
def test_console_people_act_by_keyboard(tmp_path, width):
    settings = with_tables(tmp_path, rollout={"mode": "manual"})
    with RolloutStore(settings.location) as book:
        book.play(Begun(mode="manual", release=release(1)), time.time())
        book.play(Create(release=release(2), plan=plan()), time.time())
    token, _ = people.link(settings, ADMIN, "ann", "operator")
    with running(settings, closed=True) as console, sync_playwright() as playwright:
        url = console.url
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(f"{url}/sign-in?token={token}")
        page.keyboard.press("Enter")
        page.wait_for_url(url + "/")

        page.goto(url + "/rounds")
        button(page, "Hold").focus()
        page.keyboard.press("Enter")
        page.locator(OPEN).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        page.locator(OPEN).wait_for(state="detached")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        button(page, "Hold").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("the barn is cleaned")
        page.keyboard.press("Enter")
        page.get_by_text("lichen round resume ends that").wait_for()
        assert read_order(settings.location).words == "ann holds the rounds: the barn is cleaned"
        button(page, "Resume").wait_for()  # without a reload by hand

        page.goto(url + "/rollouts/1")
        button(page, "Abort").click()
        rollouts.pause(settings, ADMIN)  # somebody acts while the form is open
        page.locator(f"{OPEN} button").first.click()
        page.get_by_text("rollout 1 is paused now, and no more open").wait_for()
        button(page, "Resume").wait_for()
        assert read_rollouts(settings.location)[0].phase.value == "paused"
        assert broken == []
        browser.close()
