"""Log lines of a device on its page: for operators alone, as text, as they come, and gone after a day."""

import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from coordinator.actions import people
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.diagnosis import device_logs
from coordinator.diagnosis.device_logs import DEVICE_LOGS
from protocol.log_lines import LogLine, LogLines
from tests.support.console.consoles import ADMIN, running, signed_in
from tests.support.console.fleet_tables import made_settings, state_of, store_fleet
from tests.support.lab.browser import CHROMIUM, needs_chromium

_LOGS = "/api/v1/devices/pi/logs"


def fleet(folder: Path) -> CoordinatorSettings:
    settings = made_settings(folder)
    store_fleet(settings, [state_of(0, "pi"), state_of(1, "barn")])
    return settings


def answers(settings: CoordinatorSettings, *texts: str, **more: object) -> None:
    """The device answers as the coordinator stores it."""
    lines = tuple(LogLine(at=time.time(), level="info", text=text) for text in texts)
    sent = LogLines.model_validate({"device": "pi", "lines": lines, **more})
    with closing(settings.location.shared(DEVICE_LOGS)) as tables:
        assert device_logs.store(tables, sent, time.time())


@pytest.mark.both_engines
def test_console_log_lines_are_for_operators_and_are_text(tmp_path: Path) -> None:
    settings = fleet(tmp_path)
    markup = "<script>alert(1)</script> 'kitchen' is no number"
    with running(settings, closed=True) as console:
        viewer, operator = (signed_in(console, settings, role) for role in ("viewer", "operator"))

        def comes(words: str) -> str:
            end = time.monotonic() + 30
            while words not in (page := operator.get("/devices/pi").body):
                assert time.monotonic() < end, words
                time.sleep(0.05)
            return page

        page = comes("Nobody asked for them within a day")
        assert 'action="/act/devices/pi/ask-logs"' in page
        assert operator.get(_LOGS).json["asked"] is None
        device_logs.ask(settings.location, "pi", time.time())
        comes("its answer may come yet")
        assert operator.get(_LOGS).json["waits"]
        answers(settings, "starts", markup, earlier=7)
        page = comes("&lt;script&gt;alert(1)&lt;/script&gt;")
        assert markup not in page
        assert "7 earlier lines are not in it" in page
        assert page.index("&lt;script&gt;alert(1)") < page.index(">starts<"), "the newest line first"
        found = operator.get(_LOGS).json
        assert [one["text"] for one in found["lines"]] == ["starts", markup]
        assert (found["waits"], found["earlier"]) == (False, 7)
        assert operator.get("/api/v1/devices/barn/logs").json["lines"] == []

        for path in ("/devices/pi", "/api/v1/devices/pi"):
            seen = viewer.get(path).body
            assert "kitchen" not in seen
            assert "ask-logs" not in seen
        assert viewer.get(_LOGS).status == 403
        assert "device-logs" not in viewer.get("/devices/pi").body

        device_logs.ask(settings.location, "pi", time.time())
        answers(settings, refused="the owner of this device permits it not: diagnosis.send_logs")
        assert "kitchen" not in comes("It sends none")


@pytest.mark.long
@needs_chromium
def test_console_an_open_page_shows_the_answer_of_a_device(tmp_path: Path) -> None:
    settings = fleet(tmp_path)
    token, _ = people.link(settings, ADMIN, "ann", "operator")
    with running(settings, closed=True) as console, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        url = console.url
        page.goto(f"{url}/sign-in?token={token}")
        page.keyboard.press("Enter")
        page.wait_for_url(url + "/")
        page.goto(url + "/devices/pi")
        page.locator("[data-connection=live]").wait_for()
        page.evaluate("window.loadedOnce = true")
        device_logs.ask(settings.location, "pi", time.time())
        page.get_by_text("its answer may come yet").wait_for()
        answers(settings, "the disk of pi is full")
        expect(page.locator("#log tbody tr")).to_have_count(1)
        expect(page.locator("#log")).to_contain_text(re.compile("the disk of pi is full"))
        page.locator("#log summary", has_text="Ask for its log").click()
        page.locator("#log details[open] button.primary").click()
        page.get_by_text("no coordinator runs").wait_for()
        assert page.evaluate("window.loadedOnce"), "the page was not loaded again"
        browser.close()
