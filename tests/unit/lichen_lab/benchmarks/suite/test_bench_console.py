"""What the console's benchmark makes of samples, and what it writes into tables, without a browser."""

import json
import subprocess
import sys
import time

import httpx2
import pytest

from lichen_lab.benchmarks.result import figure_rows
from lichen_lab.benchmarks.suite import console
from lichen_lab.benchmarks.suite.console import browser, storms, viewers
from lichen_lab.benchmarks.suite.console.prepared import device_row, prepared_console
from protocol.errors import Misconfigured


def verdicts(figures: dict[str, float] | dict[str, list[float]]) -> dict[str, list[str]]:
    rows = figure_rows("made", "console", "/devices", figures)
    return {
        row.metric: [goal.words(row) for goal in console.BENCH.goals if goal.concerns(row)] for row in rows
    }


def test_bench_console_loads_are_judged_by_their_means_in_seconds_and_kilobytes() -> None:
    figures = console.load_figures([(0.5, 100_000.0), (0.7, 300_002.0)])
    assert figures == {console.PAINT: [0.5, 0.7], console.BYTES: [100.0, 300.002]}
    assert verdicts(figures) == {console.PAINT: ["< 1 met"], console.BYTES: ["< 200 MISSED"]}


def test_bench_console_one_late_event_in_ten_misses_the_goal_of_news() -> None:
    half, most = console.NEWS.values()
    figures = console.news_figures([0.3] * 18 + [4.0] * 2)
    assert figures[half] == pytest.approx(0.3)
    assert verdicts(figures) == {half: [], most: ["< 1 MISSED"]}
    assert verdicts(console.news_figures([0.3] * 20))[most] == ["< 1 met"]


def test_bench_console_a_missing_program_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Misconfigured, match="apt-get install chromium chromium-driver"):
        console.run(True, print)


@pytest.mark.long
def test_bench_console_prepared_tables_are_what_a_real_console_shows() -> None:
    with prepared_console(40, 3) as made:

        def text(path: str) -> str:
            return str(httpx2.get(made.url + path, timeout=30).text)

        def answer(path: str) -> dict[str, object]:
            return dict(json.loads(text(f"/api/v1{path}")))

        assert (answer("/devices")["known"], answer("/versions")["total"]) == (40, 3)
        page = text("/devices")
        assert all(f'id="sort-{head}"' in page for head in browser.HEADS)
        assert "device-000019" in page, "events change devices of the first page"
        made.add_version(3)
        made.replace_device(device_row(7, mark="event-007"))
        until = time.monotonic() + 30
        while answer("/versions")["total"] != 4 or "event-007" not in text("/devices"):
            assert time.monotonic() < until, "the console shows what a measure writes"
            time.sleep(0.1)


@pytest.mark.long
def test_bench_console_viewers_fetch_what_an_event_tells_of_and_report_it() -> None:
    with prepared_console(40, 3) as made:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", viewers.__name__, made.url, "/devices", "3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"ready": 3}
            made.replace_device(device_row(7, mark="event-007"))
            time.sleep(3)  # the end is then later than the event; a late console only counts less
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    counts = json.loads(said)
    assert counts["fetches"] >= 3, "each viewer fetched the page"
    assert counts["events"] >= counts["fetches"] > counts["unchanged"]
    assert counts["bytes"] > 3 * 1000


def test_bench_console_a_twentieth_fewer_updates_misses_the_goal() -> None:
    assert storms.fewer([1000.0, 1200.0], [1050.0, 1050.0]) == pytest.approx(100 / 22)
    assert storms.fewer([1000.0], [1100.0]) == pytest.approx(-10)
    assert verdicts({storms.FEWER: [5.1]}) == {storms.FEWER: ["< 5 MISSED"]}
