"""``lichen demo`` for real: processes, broker, chaos, the observing device, the report; and Ctrl-C."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.simulation.data.sets import spar
from protocol.errors import Misconfigured

pytest.importorskip("iotcore", reason="the lab's broker")
RUN_S = 330


@pytest.fixture(autouse=True)
def data_is_here() -> None:
    try:
        spar.locate()
    except Misconfigured as error:
        pytest.skip(str(error))


def command(out: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "lichen", "demo", "--out", str(out), "--no-study", *words]


def left_over(out: Path) -> list[str]:
    """Processes that still work for this demo: their command line names its folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(out) in words and process.pid != os.getpid():
            found.append(words)
    return found


def said(process: subprocess.Popen[bytes], log: Path, words: str) -> str:
    """What a line of the demo names."""
    while (found := re.search(words, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    return found.group(1)


def status_at(pages: str) -> dict[str, Any]:
    """The coordinator's status by the console, once it serves."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{pages}api/v1/status", timeout=30) as answer:  # noqa: S310 - of the demo
                return dict(json.load(answer))
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.2)


@pytest.mark.long
@pytest.mark.timeout(RUN_S + 90)
def test_the_whole_way_with_chaos(tmp_path: Path) -> None:
    out, log = tmp_path / "demo", tmp_path / "log"
    words = ("--chaos", "--rounds", "4", "--speed", "100", "--stay", "--timeout-s", str(RUN_S - 20))
    with log.open("wb") as sink:
        process = subprocess.Popen(command(out, *words), stdout=sink, stderr=sink, cwd=tmp_path)
    try:
        status = status_at(said(process, log, r"the fleet's pages: (\S+)"))
        assert status["running"] is not False
        pages = said(process, log, r"the fleet runs until Ctrl-C; its pages: (\S+)")
        end = time.monotonic() + 60
        while not (status := status_at(pages))["running"]:
            assert time.monotonic() < end, status
        assert status["status"]["version"] == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in {0, 70}, "its checks decide, not the signal"
    finally:
        process.kill()
        process.wait()
    told = log.read_text()
    assert (out / "report.json").is_file(), told
    results = QqrResults.load(out / "report.json")
    # Four rounds are too few to promise that the fleet is above its devices; all else must hold.
    failed = [c for c in results.checks if c.must and not c.ok and "above its devices alone" not in c.what]
    assert failed == [], told
    assert [r.round for r in results.rounds] == [1, 2, 3, 4]
    assert any("SIGKILL" in text for _, text in results.events), told
    assert results.observer is not None
    assert results.observer.torch_free
    assert results.observer.predictions[-1].t > 100
    assert {p.present["gyroscope"] for p in results.observer.predictions} == {True, False}
    assert len(results.alone) == len(results.devices)
    assert results.rollout is not None
    ran = {name: {one.version for one in rows} for name, rows in results.rollout.said.items()}
    assert ran.pop("physcia") == {2, 5, 4}
    assert len(ran) == 3
    assert all(versions == {2, 4} for versions in ran.values()), ran
    assert sum(map(sum, results.confusion)) > 1000
    assert "<svg" in (out / "report.html").read_text()
    assert left_over(out) == []


def family(process: subprocess.Popen[bytes]) -> dict[int, str]:
    """All processes that came from this one, and what they are."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[child.pid] = " ".join(child.cmdline())
    return found


@pytest.mark.long
@pytest.mark.timeout(120)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command(out), stdout=log, stderr=log, cwd=tmp_path)
    try:
        end = time.monotonic() + 60
        running: dict[int, str] = {}
        # Late enough that agents have workers of their own, which the demo has never seen.
        while sum("models.worker" in words for words in running.values()) < 3:
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
            running = family(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 10
    while alive := [words for pid, words in running.items() if psutil.pid_exists(pid)]:
        assert time.monotonic() < end, alive
        time.sleep(0.1)
    assert "stopped" in (tmp_path / "log").read_text()
    assert left_over(out) == []


def test_a_folder_of_somebody_else_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert "name another folder" in done.stderr
    assert "Traceback" not in done.stderr
