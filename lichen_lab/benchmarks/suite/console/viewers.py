"""Viewers without a browser: each keeps a stream of events, and fetches a page as the page does.

``python -P -m lichen_lab.benchmarks.suite.console.viewers URL PAGE COUNT`` prints a line when all streams are
open. When its input ends it prints ``{"events", "fetches", "bytes", "unchanged"}`` and ends.
"""

import gzip
import http.client
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 60.0
_NEWS: Final = (b"event: coordinator", b"event: fleet")
"""What `/devices` listens to."""
_SHOWN: Final = re.compile(rb'"x-lichen-shown": "([^"]+)"')
_OK: Final = 200


class PageFollower:
    """One viewer: two threads, each with a connection.

    Args:
        url: of the console.
        page: path of the page.
        opened: passed when the stream is open.
    """

    def __init__(self, url: str, page: str, opened: threading.Barrier) -> None:
        self._where = urlsplit(url).netloc
        self._page = page
        self.counts = Counter[str](events=0, fetches=0, bytes=0, unchanged=0)
        self._opened = opened
        self._news = threading.Event()

    def start(self) -> None:
        """Start the threads; they end with the process."""
        for run in (self._listen, self._fetch):
            threading.Thread(target=run, daemon=True).start()

    def _listen(self) -> None:
        line = http.client.HTTPConnection(self._where, timeout=_TIMEOUT_S)
        line.request("GET", "/events", headers={"accept": "text/event-stream"})
        stream = line.getresponse()
        self._opened.wait()
        for words in stream:
            if words.startswith(_NEWS):
                self.counts["events"] += 1
                self._news.set()

    def _fetch(self) -> None:
        """While a page is fetched, later events are one event, as in the page."""
        line, shown = http.client.HTTPConnection(self._where, timeout=_TIMEOUT_S), ""
        while True:
            self._news.wait()
            self._news.clear()
            headers = {"hx-request": "true", "hx-target": "live", "accept-encoding": "gzip"}
            line.request("GET", self._page, headers=headers | ({"x-lichen-shown": shown} if shown else {}))
            answer = line.getresponse()
            data = answer.read()
            self.counts["fetches"] += 1
            self.counts["bytes"] += len(data)
            self.counts["unchanged"] += answer.status != _OK
            text = gzip.decompress(data) if answer.headers.get("content-encoding") == "gzip" else data
            found = _SHOWN.search(text)
            shown = found[1].decode() if found else shown


def _say(line: Mapping[str, int]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(url: str, page: str, count: int) -> None:
    """View until the input ends."""
    opened = threading.Barrier(count + 1)
    viewers = [PageFollower(url, page, opened) for _ in range(count)]
    for viewer in viewers:
        viewer.start()
    opened.wait(_TIMEOUT_S)
    _say({"ready": count})
    sys.stdin.read()
    _say({name: sum(one.counts[name] for one in viewers) for name in viewers[0].counts})
    os._exit(0)  # threads that wait for the console must not keep the process


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
