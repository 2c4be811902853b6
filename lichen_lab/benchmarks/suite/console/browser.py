"""The console's pages in Debian's Chromium: paint, bytes, sorting, and words that come without a reload."""

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from lichen_lab.benchmarks.suite.console.prepared import PreparedConsole, device_row
from protocol.errors import Misconfigured, Transient

if TYPE_CHECKING:
    from selenium import webdriver

_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05
_PAUSE_S: Final = (0.5, 1.5)
"""Between events: their times must not keep step with the console's readings."""
_ON_PAGE: Final = 20
"""Devices whose rows are on the first page."""
HEADS: Final = ("status", "quality", "heard", "roles", "labels")
_FLAGS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_LIVE: Final = "return document.querySelector('[data-connection]')?.dataset.connection === 'live'"
_PAINT: Final = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
_BYTES: Final = """
return ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
  .reduce((sum, one) => sum + one.transferSize, 0)
"""
_SORT: Final = """
const [id, done] = arguments;
const order = () => document.getElementById(id).closest("th").getAttribute("aria-sort");
const before = order();
const begun = performance.now();
const settled = () => {
  if (order() === before) return;
  document.removeEventListener("htmx:afterSettle", settled);
  done(performance.now() - begun);
};
document.addEventListener("htmx:afterSettle", settled);
document.getElementById(id).click();
"""
_WATCH: Final = """
const words = arguments[0];
window.shownAt = null;
window.loadedOnce = true;
const look = () => {
  if (window.shownAt === null && document.getElementById("live").textContent.includes(words)) {
    window.shownAt = 0;
    requestAnimationFrame(() => { window.shownAt = Date.now(); });
    observer.disconnect();
  }
};
const observer = new MutationObserver(look);
observer.observe(document.body, {subtree: true, childList: true, characterData: true});
"""
_SHOWN: Final = "return window.loadedOnce ? window.shownAt : -1"


def programs() -> tuple[str, str]:
    """Paths of Chromium and its driver.

    Raises:
        Misconfigured: one of them, or selenium, is missing; the message says how to install it.
    """
    if importlib.util.find_spec("selenium") is None:
        raise Misconfigured("`lichen bench console` needs selenium: pip install 'lichen[dev]'")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing = "chromium" if chromium is None else "chromedriver"
        raise Misconfigured(
            f"`lichen bench console` finds no {missing} in PATH: apt-get install chromium chromium-driver"
        )
    return chromium, driver


@contextmanager
def browser() -> "Iterator[webdriver.Chrome]":
    """Chromium without a window, with a new profile.

    Raises:
        Misconfigured: see :func:`programs`.
    """
    chromium, driver = programs()
    from selenium import webdriver  # noqa: PLC0415 - of the extra `dev`; only this benchmark needs it

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in _FLAGS:
        options.add_argument(flag)
    one = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        one.set_script_timeout(_LIMIT_S)
        yield one
    finally:
        one.quit()


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _LIMIT_S
    while not true():
        if time.monotonic() > end:
            raise Transient(f"{what}: not within {_LIMIT_S:g} s")
        time.sleep(_POLL_S)


def first_load(url: str) -> tuple[float, float]:
    """Seconds until the first contentful paint, and bytes transferred, of a page in a new profile.

    Raises:
        Transient: the page is not painted, or not live, in time.
    """
    with browser() as one:
        _open(one, url)
        _until(lambda: one.execute_script(_PAINT) is not None, f"{url} is painted")
        return one.execute_script(_PAINT) / 1e3, float(one.execute_script(_BYTES))


def sort_times(url: str, count: int) -> list[float]:
    """Milliseconds from a click on the head of a column until the rows in the new order are in the page."""
    with browser() as one:
        _open(one, f"{url}/devices")
        heads = [f"sort-{HEADS[n // 2 % len(HEADS)]}" for n in range(count)]
        return [float(one.execute_async_script(_SORT, head)) for head in heads]


def word_times(console: PreparedConsole, versions: int, count: int, seed: int) -> dict[str, list[float]]:
    """Page -> seconds from just before a row is written until its words are shown, without a reload.

    Args:
        console: its tables get the rows.
        versions: the number of the next version.
        count: events on each page.
        seed: of the pauses between events.
    """
    rng = np.random.default_rng(seed)
    with browser() as one:
        _open(one, console.url + "/devices")
        devices = []
        for n in range(count):
            word = f"event-{n:03d}"
            changed = partial(console.replace_device, device_row(n % _ON_PAGE, mark=word))
            devices.append(_shown_after(one, changed, word, rng.uniform(*_PAUSE_S)))
        _open(one, console.url + "/versions")
        made = []
        for n in range(versions, versions + count):
            added = partial(console.add_version, n)
            made.append(_shown_after(one, added, f"Version {n}", rng.uniform(*_PAUSE_S)))
    return {"/devices": devices, "/versions": made}


def _open(one: "webdriver.Chrome", url: str) -> None:
    one.get(url)
    _until(lambda: bool(one.execute_script(_LIVE)), f"{url} is live")


def _shown_after(one: "webdriver.Chrome", write: Callable[[], None], words: str, pause_s: float) -> float:
    time.sleep(pause_s)
    one.execute_script(_WATCH, words)
    begun = time.time()
    write()
    _until(lambda: bool(one.execute_script(_SHOWN)), f"the page shows {words!r}")
    shown = float(one.execute_script(_SHOWN))
    if shown < 0:
        raise Transient(f"the page was loaded again before it showed {words!r}")
    return shown / 1e3 - begun
