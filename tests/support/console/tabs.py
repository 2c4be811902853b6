"""Pages of a live fleet in the tabs of Debian's Chromium, driven by selenium."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.keys import Keys

from tests.support.console.live_fleet import LiveFleet

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_MARK = "window.loadedOnce"
_BOUND_S = 30.0


class Tabs:
    """One browser with a page in each of its tabs; each page carries a mark that a load would remove."""

    def __init__(self, browser: webdriver.Chrome, fleet: LiveFleet) -> None:
        self.browser = browser
        self._fleet = fleet
        self._of: dict[str, str] = {}

    def open(self, path: str) -> None:
        """In a tab of its own."""
        if self._of:
            self.browser.switch_to.new_window("tab")
        self.browser.get(self._fleet.url + path)
        self._of[path] = self.browser.current_window_handle
        self.until(lambda: self.connection() == "live", f"{path} is live")
        self.browser.execute_script(f"{_MARK} = true")

    def to(self, path: str) -> None:
        self.browser.switch_to.window(self._of[path])

    def close(self, path: str) -> None:
        self.to(path)
        self.browser.close()
        del self._of[path]
        self.to(next(iter(self._of)))

    def text(self) -> str:
        return str(self.browser.execute_script("return document.body.innerText"))

    def connection(self) -> str:
        words = "return document.querySelector('[data-connection]')?.dataset.connection ?? ''"
        return str(self.browser.execute_script(words))

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + _BOUND_S
        while not self._holds(true):
            assert time.monotonic() < end, f"{what}\n{self.text()}\n{self._fleet.logs()}"
            time.sleep(0.1)

    @staticmethod
    def _holds(true: Callable[[], Any]) -> bool:
        try:
            return bool(true())
        except StaleElementReferenceException:
            return False  # the region was fetched again just now

    def shows(self, path: str, *words: str) -> None:
        """The page in that tab comes to show these words, and was not loaded again."""
        self.to(path)
        self.until(lambda: all(one in self.text() for one in words), f"{path} shows {words}")
        self._not_loaded_again(path)

    def hides(self, path: str, words: str) -> None:
        """The page in that tab comes to show these words no more, and was not loaded again."""
        self.to(path)
        self.until(lambda: words not in self.text(), f"{path} shows no more {words!r}")
        self._not_loaded_again(path)

    def paths(self) -> list[str]:
        return list(self._of)

    def severe(self) -> list[str]:
        """Errors since the last call."""
        return [one["message"] for one in self.browser.get_log("browser") if one["level"] == "SEVERE"]

    def hosts(self) -> set[str]:
        """Where requests went since the last call."""
        found = set()
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                at = urlsplit(message["params"]["request"]["url"])
                if at.scheme not in ("data", "about", "chrome"):
                    found.add(f"{at.scheme}://{at.netloc}")
        return found

    def tagged(self, path: str, word: str, *, still: bool = True) -> None:
        """A tag with this word comes to be, or with ``still=False`` to be gone."""
        self.to(path)
        words = "return [...document.querySelectorAll('.tag')].map((one) => one.innerText)"
        self.until(lambda: (word in self.browser.execute_script(words)) is still, f"{path}: {word} {still}")
        self._not_loaded_again(path)

    def press_through(self, label: str) -> None:
        """Open the form of an action, and send it, by keyboard alone."""

        def press(key: str) -> None:
            self.browser.switch_to.active_element.send_keys(key)

        def reach() -> None:
            for _ in range(60):
                press(Keys.TAB)
                if self.browser.execute_script("return document.activeElement.innerText") == label:
                    return
            raise AssertionError(f"{label} cannot be reached by Tab: {self.text()}")

        self.browser.execute_script("document.activeElement.blur()")
        reach()
        press(Keys.ENTER)
        reach()
        press(Keys.ENTER)

    def _not_loaded_again(self, path: str) -> None:
        assert self.browser.execute_script(f"return {_MARK} === true"), f"{path} was loaded again"


@contextmanager
def tabs_of(fleet: LiveFleet) -> Iterator[Tabs]:
    """A browser of its own, with a log of its errors and requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Tabs(browser, fleet)
    finally:
        browser.quit()
