"""The operator's console: how fast its pages are, how soon they show news, and what its viewers cost.

Pages: ``lichen console serve`` over prepared tables of 10,000 devices and 200 versions, in Debian's Chromium.
News: a row is written to these tables, and the open page shows its words. The coordinator does not run for
either. Viewers: a real coordinator and Mosquitto take storms of 1,000 updates, with a console and 20 streams
of events that fetch ``/devices`` at each event, and without a console. All share this machine's cores.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.suite.console import browser, storms
from lichen_lab.benchmarks.suite.console.prepared import prepared_console

_DEVICES, _VERSIONS = 10_000, 200
_QUICK_DEVICES, _QUICK_VERSIONS = 500, 20
_LOADS, _SORTS, _EVENTS = 5, 10, 20
_QUICK_LOADS, _QUICK_SORTS, _QUICK_EVENTS = 1, 2, 2
_STORM, _QUICK_STORM = 1_000, 50
_REPETITIONS: Final = 20
_SEED: Final = 1
_PAGES: Final = ("/devices", "/versions")
PAINT: Final = "first contentful paint, s"
BYTES: Final = "transferred, kB"
SORT: Final = "click to sorted rows, ms"
NEWS: Final = {0.5: "row written to words shown, p50, s", 0.95: "row written to words shown, p95, s"}
"""By quantile."""


def news_figures(seconds: Sequence[float]) -> dict[str, float]:
    """Quantiles of the delays of one page's events."""
    return {metric: float(np.quantile(seconds, share)) for share, metric in NEWS.items()}


def load_figures(loads: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    """Of the loads of one page: seconds to the paint, and bytes."""
    return {PAINT: [paint for paint, _ in loads], BYTES: [size / 1e3 for _, size in loads]}


def _pages(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - passed on from `run`
    begun = time.perf_counter()
    devices, versions = (_QUICK_DEVICES, _QUICK_VERSIONS) if quick else (_DEVICES, _VERSIONS)
    dataset, rows = f"{devices:,} devices, {versions:,} versions", list[ResultRow]()

    def add(page: str, figures: Mapping[str, float | Sequence[float]]) -> None:
        rows.extend(figure_rows(dataset, "console", page, figures, seconds=time.perf_counter() - begun))

    with prepared_console(devices, versions) as console:
        for page in _PAGES:
            count = _QUICK_LOADS if quick else _LOADS
            loads = [browser.first_load(console.url + page) for _ in range(count)]
            say(f"{page}: " + ", ".join(f"{paint:.2f} s, {size / 1e3:.0f} kB" for paint, size in loads))
            add(page, load_figures(loads))
        took = browser.sort_times(console.url, _QUICK_SORTS if quick else _SORTS)
        say("sorted: " + ", ".join(f"{one:.0f} ms" for one in took))
        add("/devices", {SORT: took})
        news = browser.word_times(console, versions, _QUICK_EVENTS if quick else _EVENTS, _SEED)
        for page, seconds in news.items():
            say(f"{page}, news: " + ", ".join(f"{one:.2f} s" for one in seconds))
            add(page, news_figures(seconds))
    return rows


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """10,000 devices and 200 versions; quick: 500 and 20.

    Raises:
        Misconfigured: Chromium, its driver or selenium is missing.
        Transient: a page is not there in time.
    """
    browser.programs()
    return [*_pages(quick, say), *_storms(quick, say)]


def _storms(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - passed on from `run`
    begun = time.perf_counter()
    devices, repetitions = (_QUICK_STORM, 1) if quick else (_STORM, _REPETITIONS)
    found = storms.storms(devices, repetitions, say)
    seconds = time.perf_counter() - begun
    dataset = f"storms of {devices:,} updates"
    return [
        row
        for setting, figures in found.items()
        for row in figure_rows(dataset, "console", setting, figures, seconds=seconds)
    ]


BENCH: Final = Bench(
    name="console",
    run=run,
    goals=(Goal(PAINT, 1), Goal(BYTES, 200), Goal(SORT, 100), Goal(NEWS[0.95], 1), Goal(storms.FEWER, 5)),
)
