"""Pages of rounds, versions and rollouts in a browser: readable on a phone, accessible, and live."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coordinator.rollout.model import Begun, Create
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from tests.support.console.consoles import running
from tests.support.console.history import NOW, History, settings_in
from tests.support.coordinator.rollouts import plan, release

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="SKIPPED LOUDLY: no chromium, or no chromedriver"
)
AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js"))
PAGES = ("/", "/rounds", "/rounds/3", "/versions", "/versions/3", "/rollouts", "/rollouts/1")
LONG = "a-device-with-a-name-as-long-as-names-may-be-" + "x" * 11


class Browser:
    """Chromium without a window."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def opens(self, path: str) -> None:
        self.driver.get(self.url + path)
        self.until(
            lambda: self.driver.find_elements(By.CSS_SELECTOR, "[data-connection=live]"), f"{path} is live"
        )

    def is_seen(self, width: int, scheme: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end, what
            time.sleep(0.05)

    def says(self, words: str) -> None:
        text = (
            "return document.getElementById('live').innerText"  # at once: the region is replaced at any time
        )
        self.until(lambda: words in self.driver.execute_script(text), words)

    def violations(self) -> list[Any]:
        self.driver.execute_script(AXE.read_text())
        script = "const done = arguments[0]; axe.run(document).then((found) => done(found.violations))"
        found = self.driver.execute_async_script(script)
        return [
            (one["id"], one["nodes"][0]["html"][:200])
            for one in found
            if one["impact"] in {"serious", "critical"}
        ]


@contextmanager
def chromium(url: str) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver, url)
        assert [one for one in driver.get_log("browser") if one["level"] == "SEVERE"] == []
    finally:
        driver.quit()


@pytest.mark.long
def test_console_rounds_versions_and_rollouts_are_readable_at_every_width_and_live(tmp_path) -> None:
    settings = settings_in(tmp_path, rollout={"mode": "manual"})
    with History(settings) as history:
        history.makes(0)
        for number in range(1, 4):
            history.plays(number, ["a", LONG])
        history.stands(RoundPhase.WAITING, 4, 3)
        with RolloutStore(settings.location) as book:
            book.play(Begun(mode="manual", release=release(1)), NOW)
            book.play(Create(release=release(2), plan=plan()), NOW)
        with running(settings) as console, chromium(console.url) as browser:
            for scheme, width in (("light", 1440), ("dark", 360), ("light", 360), ("dark", 1440)):
                browser.is_seen(width, scheme)
                for path in PAGES:
                    browser.opens(path)
                    cut = browser.driver.execute_script(
                        "return document.documentElement.scrollWidth - innerWidth"
                    )
                    assert cut <= 0, f"{path} is cut off at {width} px"
                    assert browser.violations() == [], (path, width, scheme)
            browser.opens("/versions")

            def drawn() -> int:
                return len(browser.driver.find_elements(By.CSS_SELECTOR, "figure canvas"))

            browser.until(lambda: drawn() == 3, "three plots are drawn")
            history.plays(4, ["a"])
            browser.says("Version 4")
            browser.until(lambda: drawn() == 3, "and drawn anew, each once")
            browser.opens("/rounds/4")
            browser.driver.execute_script("document.getElementById('q').focus()")
            browser.driver.switch_to.active_element.send_keys("nobody", Keys.ENTER)
            browser.says("No devices")
            assert "q=nobody" in browser.driver.current_url
            browser.opens("/rounds")
            history.opens(5, ["a"])
            history.stands(
                RoundPhase.COLLECTING, 5, 4, selected=("a",), since=time.time(), until=time.time() + 60
            )
            browser.says("Round 5")
            browser.opens("/")
            browser.says("0 of 1 devices delivered")
            history.delivers(5, ["a"])
            history.stands(
                RoundPhase.COLLECTING,
                5,
                4,
                selected=("a", "b"),
                delivered=("a",),
                since=time.time(),
                until=time.time() + 60,
            )
            browser.says("1 of 2 devices delivered")
