"""Bytes up and down since the task began, across restarts."""

from collections.abc import Iterable

from coordinator.storage.database import Database
from runtime.metrics import MetricFamily, counter
from runtime.mqtt.link import LinkCounters


class Traffic:
    """The bytes of earlier processes, plus the link's counters of this one."""

    def __init__(self, store: Database, counters: LinkCounters) -> None:
        self._store = store
        self._counters = counters
        self._before = (int(store.get_meta("bytes_up") or 0), int(store.get_meta("bytes_down") or 0))
        self._saved = self._before

    def totals(self) -> tuple[int, int]:
        """Bytes received from devices, bytes sent to them."""
        return self._before[0] + self._counters.bytes_in, self._before[1] + self._counters.bytes_out

    def save(self) -> None:
        """Write the totals to disk, if they changed."""
        totals = self.totals()
        if totals != self._saved:
            self._store.put_meta({"bytes_up": str(totals[0]), "bytes_down": str(totals[1])})
            self._saved = totals

    def metrics(self) -> Iterable[MetricFamily]:
        """Bytes since the task began."""
        up, down = self.totals()
        yield counter("lichen_bytes_up", "Bytes received from devices since the task began", up)
        yield counter("lichen_bytes_down", "Bytes sent to devices since the task began", down)
