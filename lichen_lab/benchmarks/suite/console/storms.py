"""Storms of updates with a console and its viewers beside the coordinator, and without them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.suite.console import viewers
from lichen_lab.benchmarks.suite.console.prepared import start_console
from lichen_lab.benchmarks.suite.coordinator import scale
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from protocol.errors import Transient

VIEWERS: Final = 20
WITH: Final = f"console and {VIEWERS} viewers"
WITHOUT: Final = "no console"
FETCHES: Final = "pages that viewers fetched"
FEWER: Final = "fewer updates/s, %"
_PAGE: Final = "/devices"
_ROUNDS: Final = 3
_VIEWERS_NICENESS: Final = 19
"""Browsers of real viewers are on other machines: here they get what the others leave."""
_LIMIT_S: Final = 60.0
Figures = Mapping[str, list[float]]


@contextmanager
def _watched(fleet: ProcessFleet, seen: list[float]) -> Iterator[None]:
    """A console and its viewers; the pages that they fetched are added to ``seen`` at the end.

    Raises:
        Transient: they do not start, or fetched nothing.
    """
    url, errors = start_console(fleet), fleet.root / "viewers.log"
    follow = [sys.executable, "-P", "-m", viewers.__name__]
    with errors.open("wb") as log:
        process = subprocess.Popen(
            ["nice", "-n", str(_VIEWERS_NICENESS), *follow, url, _PAGE, str(VIEWERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise Transient(f"the viewers do not start: {errors.read_text()[-1000:]}")
        yield
        said, _ = process.communicate(timeout=_LIMIT_S)
        counts = json.loads(said)
        if not counts["fetches"]:
            raise Transient(f"{VIEWERS} viewers fetched no page: {errors.read_text()[-1000:]}")
        seen.append(float(counts["fetches"]))
    finally:
        process.kill()
        process.wait()


def storms(devices: int, repetitions: int, say: Say) -> dict[str, dict[str, list[float]]]:
    """Setting -> metric -> its value in each storm; with and without viewers, each first in turn.

    ``FEWER`` of the setting with viewers has one value a repetition, of its storms alone.

    Raises:
        Transient: updates were refused or have no receipt, or the viewers saw nothing.
    """
    found: dict[str, dict[str, list[float]]] = {WITHOUT: {}, WITH: {}}
    seen: list[float] = []
    for repetition in range(repetitions):
        rates: dict[str, list[float]] = {}
        for setting in (WITHOUT, WITH) if repetition % 2 else (WITH, WITHOUT):
            figures = found[setting]
            say(setting)
            reports = (
                scale.measure(devices, _ROUNDS, say, lambda fleet: _watched(fleet, seen))
                if setting == WITH
                else scale.measure(devices, _ROUNDS, say)
            )
            measured = scale.storm_figures(devices, reports)
            for metric in (scale.RATE, scale.CPU):
                figures.setdefault(metric, []).extend(measured[metric])
            rates[setting] = measured[scale.RATE]
        found[WITH].setdefault(FEWER, []).append(fewer(rates[WITHOUT], rates[WITH]))
    found[WITH][FETCHES] = seen
    return found


def fewer(without: Sequence[float], beside: Sequence[float]) -> float:
    """Percent by which the mean rate with viewers is below the mean rate without; negative: above."""
    return 100 * (1 - fmean(beside) / fmean(without))
