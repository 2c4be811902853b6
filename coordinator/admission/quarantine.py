"""Quarantine: a device whose messages are refused again and again is denied for a while.

Only content that was refused counts (not missed rounds, nor bytes damaged on the way). After so many refusals
within a time a device is quarantined: it is not selected, and its messages are refused before they are
decoded. Each further quarantine lasts twice as long, up to a limit; after as long without offence the count
starts again. A quarantine ends by time, or when the operator approves the device again. The topic names the
device: if the broker binds topics to certificates, no device can put another into quarantine; if it does not
(no TLS), every client of the broker can.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import sqlalchemy as sa
import structlog

from coordinator.config.coordinator import QuarantineSettings
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.errors import LichenError, Reason, Refused
from runtime.clock import Clock
from runtime.metrics import MetricFamily, gauge
from runtime.pacing import backoff_s

log = structlog.get_logger(__name__)

OFFENCES: Final = frozenset(
    {
        *(Reason.MALFORMED, Reason.TOO_LARGE, Reason.WRONG_TENSORS, Reason.WRONG_MODALITY),
        *(Reason.NON_FINITE, Reason.OUT_OF_BOUNDS, Reason.WRONG_DEVICE, Reason.OUTLIER),
    }
)
"""Reasons that only the content of a message can have."""
MAX_TRACKED: Final = 10_000
_MANY: Final = 1000.0
_FOLLOW_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class OffenceRecord:
    """One device's record; times in Unix seconds.

    Attributes:
        times: of the refusals that count, oldest first.
        level: quarantines so far.
        since: when the last quarantine began.
        until: when it ends; 0: there was none.
        reason: the last refusal's.
    """

    times: tuple[float, ...] = ()
    level: int = 0
    since: float = 0.0
    until: float = 0.0
    reason: str = ""


def record_offence(known: OffenceRecord, reason: str, now: float, rules: QuarantineSettings) -> OffenceRecord:
    """The record after one more refusal that counts. Pure."""
    recent = [t for t in known.times if 0 <= now - t < rules.within_s]
    times = (*recent, now)[-max(1, rules.refusals) :]
    if rules.refusals == 0 or len(times) < rules.refusals or now < known.until:
        return replace(known, times=times, reason=reason)
    level = 0 if now - known.until > rules.longest_s else known.level
    lasts_s = backoff_s(rules.first_s, rules.longest_s, level)
    return OffenceRecord((), level + 1, now, now + lasts_s, reason)


@dataclass(eq=False, repr=False)
class Quarantine:
    """The records of all devices that were ever refused; quarantines survive restarts.

    Args:
        store: read at the start.
        ledger: writes the records, many at a time.
        wall: Unix seconds.
        rules: when, and for how long.
        released_at: when the operator last approved a device (Unix seconds): an earlier quarantine is over.
        known: whether a device is registered: invented names must not fill the disk.
    """

    store: Database
    ledger: WriteBehindBuffer
    wall: Callable[[], float]
    rules: QuarantineSettings
    released_at: Callable[[str], float | None]
    known: Callable[[str], bool]

    def __post_init__(self) -> None:
        self._records = dict(read(self.store))

    def refused(self, device: str, refused: Refused) -> str:
        """Count a refusal, if its reason counts.

        Returns:
            An addition to the device's answer if a quarantine begins: no receipt asks it again until the end.
        """
        if refused.reason not in OFFENCES or not self.known(device):
            return ""
        before = self._records.get(device, OffenceRecord())
        if before.until and self._released(device, before):
            before = OffenceRecord()
        after = record_offence(before, refused.reason.value, self.wall(), self.rules)
        self._records.pop(device, None)  # the newest last: the oldest are removed first
        self._note(device, after)
        self._forget_oldest()
        if after.level <= before.level and after.since <= before.since:
            return ""
        lasts_s = after.until - after.since
        log.warning("quarantined", device=device, reason=after.reason, seconds=round(lasts_s))
        return f"quarantined from now on, {describe(after, lasts_s)}"

    def _note(self, device: str, record: OffenceRecord) -> None:
        self._records[device] = record
        self.ledger.note(schema.standing, device=device, record=json.dumps(asdict(record)))

    def _forget_oldest(self) -> None:
        if len(self._records) > MAX_TRACKED:
            now = self.wall()
            free = (device for device, one in self._records.items() if one.until <= now)
            self.forget(next(free, next(iter(self._records))))

    def forget(self, device: str) -> None:
        """Remove a device's record."""
        if self._records.pop(device, None) is not None:
            self.ledger.remove(schema.standing, device=device)

    def denial(self, device: str) -> Refused | None:
        """Why a device is denied now; None if it is not."""
        known = self._records.get(device)
        if known is None or not known.until:
            return None
        now = self.wall()
        if now < known.since:  # the clock was set back: the quarantine starts again, with the same length
            known = replace(known, since=now, until=now + known.until - known.since)
            self._note(device, known)
        left = known.until - now
        if left <= 0 or self._released(device, known):
            return None
        return Refused(Reason.QUARANTINED, describe(known, left))

    def _released(self, device: str, known: OffenceRecord) -> bool:
        """Whether the operator ended the quarantine; later offences start a new count."""
        return (self.released_at(device) or 0.0) >= known.since

    async def follow(self, clock: Clock) -> None:
        """Read, for ever, what other processes noted; the newer record of a device counts."""
        while True:
            await clock.sleep(_FOLLOW_S)
            try:
                found = await asyncio.to_thread(read, self.store)
            except LichenError as error:
                log.warning("offences_not_read", why=str(error))
                continue
            for device, record in found.items():
                known = self._records.get(device)
                if known is None or _newest(known) < _newest(record):
                    self._records[device] = record
            self._forget_oldest()

    def in_force(self) -> dict[str, Refused]:
        """All devices in quarantine."""
        found = ((device, self.denial(device)) for device in list(self._records))
        return {device: refused for device, refused in found if refused is not None}

    def metrics(self) -> Iterable[MetricFamily]:
        """How many devices are in quarantine."""
        yield gauge("lichen_quarantined", "Devices in quarantine", len(self.in_force()))


def _newest(record: OffenceRecord) -> float:
    """The time of its last change."""
    return max((*record.times, record.since))


def describe(known: OffenceRecord, left_s: float) -> str:
    """Until when, and why."""
    lasting = f"{left_s:.0f} s" if left_s < _MANY else f"{left_s / 60:.0f} min"
    times = "the first time" if known.level == 1 else f"time {known.level}"
    return (
        f"for another {lasting}, {times}; its last refusal was {known.reason}. "
        "`lichen device approve` ends it"
    )


def read(store: Database) -> Mapping[str, OffenceRecord]:
    """The records on disk; empty for a folder of an older lichen."""
    with store.transaction() as connection:
        if not sa.inspect(connection).has_table(schema.standing.name):
            return {}
    rows = store.rows(sa.select(schema.standing))
    return {row["device"]: one for row in rows if (one := _record(row["record"])) is not None}


def _record(text: str) -> OffenceRecord | None:
    """None if it cannot be read: the device's count starts again, and the coordinator starts."""
    try:
        known: dict[str, Any] = json.loads(text)
        return OffenceRecord(**{**known, "times": tuple(known["times"])})
    except (ValueError, TypeError, KeyError) as error:
        log.warning("offence_record_dropped", why=str(error))
        return None


def in_quarantine(records: Mapping[str, OffenceRecord], now: float) -> Iterable[tuple[str, OffenceRecord]]:
    """Devices in quarantine at that time, by name; later approvals are not considered here."""
    return ((device, one) for device, one in sorted(records.items()) if one.since <= now < one.until)
