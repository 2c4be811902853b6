"""Debian's Prometheus, on a free port: scrapes every second and answers queries."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.observability import scrape
from coordinator.observability.dashboards import FOLDER
from tests.support.network.brokers import HOST, free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="prometheus is not installed (apt-get install prometheus)"
)


class Prometheus:
    """A running one."""

    def __init__(self, port: int) -> None:
        self._base = f"http://{HOST}:{port}"

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        url = f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()[:500]}") from None

    def samples(self, expression: str) -> list[dict[str, Any]]:
        """The present result of an expression."""
        return self.ask("query", query=expression)["result"]

    def until(self, expression: str, seconds: float = 30.0) -> list[dict[str, Any]]:
        """Its result, as soon as there is one; empty if there is none in time."""
        end = time.monotonic() + seconds
        while not (found := self.samples(expression)) and time.monotonic() < end:
            time.sleep(0.2)
        return found


@contextmanager
def prometheus(folder: Path, fleet: str, target: str) -> Iterator[Prometheus]:
    """Run it with the scrape configuration and the alert rules of the pack."""
    assert PROMETHEUS is not None
    folder.mkdir()
    (folder / scrape.CONFIG).write_text(scrape.scrape_config(fleet, target, every_s=1))
    shutil.copy(FOLDER / scrape.RULES, folder / scrape.RULES)
    port = free_port()
    command = [
        PROMETHEUS,
        f"--config.file={folder / scrape.CONFIG}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
        "--log.level=warn",
    ]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    made, end = Prometheus(port), time.monotonic() + 20
    try:
        while True:
            try:
                made.ask("status/buildinfo")
                break
            except (OSError, AssertionError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"prometheus did not start: {log.read_text()[-2000:]}") from None
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(20)
