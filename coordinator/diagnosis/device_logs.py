"""The last log lines of devices that an operator asked for: the newest answer of each, for a day.

Tables of their own, which no backup copies: they are worth nothing tomorrow, and say more about a device than
anything else that a coordinator stores. Bounds: ``MAX_DEVICES`` answers of at most ``MAX_LOG_BYTES``.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from coordinator.storage.engines.shared_tables import Design, SharedTables, Statements
from coordinator.storage.location import Location
from protocol.errors import Misconfigured, Reason, Refused
from protocol.log_lines import LogLines

MAX_DEVICES: Final = 64
"""Devices with an answer or an open question; the oldest are removed."""
KEEP_S: Final = 86400.0
OPEN_S: Final = 300.0
"""An answer that comes later than this after its question is not stored."""
AGAIN_S: Final = 10.0
"""A device that was asked is not asked again in this time, unless it has answered."""
_UPGRADES: Final[Mapping[int, Sequence[str]]] = {}
_SCHEMA: Final = (
    # answer: a message LogLines as JSON; NULL until it comes.
    """CREATE TABLE IF NOT EXISTS device_logs (
        device TEXT PRIMARY KEY, asked_wall REAL NOT NULL, open INTEGER NOT NULL, answered_wall REAL,
        answer TEXT) WITHOUT ROWID""",
)
DEVICE_LOGS: Final = Design(
    "device-logs.sqlite3", "device_logs", _SCHEMA, 1, 1, _UPGRADES, "remove it: answers of devices are lost"
)


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """What is known of a device's log lines. Times are Unix seconds.

    Attributes:
        asked: when it was asked last.
        waits: whether its answer to that is still expected.
        answered: when ``lines`` came; None: it never answered.
        lines: its newest answer.
    """

    asked: float
    waits: bool
    answered: float | None = None
    lines: LogLines | None = None


def ask(location: Location, device: str, wall: float) -> None:
    """Note that a device is asked.

    Raises:
        Refused: it was asked a moment ago.
        Transient: the disk is full, or the tables cannot be reached.
    """
    with closing(location.shared(DEVICE_LOGS)) as tables, tables.change() as rows:
        found = rows.execute(
            "SELECT asked_wall, open FROM device_logs WHERE device = ?", (device,)
        ).fetchone()
        if found is not None and found["open"] and 0 <= wall - float(found["asked_wall"]) < AGAIN_S:
            words = (
                f"{device} was asked {wall - float(found['asked_wall']):.0f} s ago; its answer may come yet"
            )
            raise Refused(Reason.DUPLICATE, words)
        rows.execute(
            "INSERT INTO device_logs VALUES (?, ?, 1, NULL, NULL) ON CONFLICT (device) DO UPDATE SET"
            " asked_wall = excluded.asked_wall, open = 1",
            (device, wall),
        )
        _remove_old(rows, wall)


def forget(location: Location, device: str) -> None:
    """Remove what is known of a device's log lines. Raises Transient."""
    if location.has(DEVICE_LOGS):
        with closing(location.shared(DEVICE_LOGS)) as tables, tables.change() as rows:
            rows.execute("DELETE FROM device_logs WHERE device = ?", (device,))


def read(location: Location, device: str, wall: float) -> LogAnswer | None:
    """What is known of a device's log lines; None if nobody asked within a day.

    Raises:
        Misconfigured: the tables cannot be read.
        Transient: another process holds them, or the server cannot be reached.
    """
    try:
        with location.reader(DEVICE_LOGS) as tables:
            if tables is None:
                return None
            row = tables.execute("SELECT * FROM device_logs WHERE device = ?", (device,)).fetchone()
    except sqlite3.Error as error:
        raise Misconfigured(f"{location.where}: answers of devices cannot be read: {error}") from None
    if row is None or wall - float(row["asked_wall"]) > KEEP_S:
        return None
    asked = float(row["asked_wall"])
    waits = bool(row["open"]) and wall - asked <= OPEN_S
    if row["answer"] is None:
        return LogAnswer(asked, waits)
    try:
        lines = LogLines.model_validate_json(row["answer"])
    except ValueError:
        raise Misconfigured(f"{location.where}: the answer of {device} is damaged; ask it again") from None
    return LogAnswer(asked, waits, float(row["answered_wall"]), lines)


def asked_devices(tables: SharedTables, wall: float) -> frozenset[str]:
    """Devices whose answer is expected. Raises Transient."""
    query = "SELECT device FROM device_logs WHERE open = 1 AND asked_wall >= ?"
    return frozenset(str(row["device"]) for row in tables.rows(query, wall - OPEN_S))


def store(tables: SharedTables, answer: LogLines, wall: float) -> bool:
    """Store an answer if it is expected; whether it was. Raises Transient."""
    with tables.change() as rows:
        done = rows.execute(
            "UPDATE device_logs SET open = 0, answered_wall = ?, answer = ? WHERE device = ? AND open = 1"
            " AND asked_wall >= ?",
            (wall, answer.model_dump_json(exclude_none=True), answer.device, wall - OPEN_S),
        )
        _remove_old(rows, wall)
        return bool(done.rowcount)


def _remove_old(rows: Statements, wall: float) -> None:
    rows.execute("DELETE FROM device_logs WHERE asked_wall < ?", (wall - KEEP_S,))
    rows.execute(
        "DELETE FROM device_logs WHERE device NOT IN"
        " (SELECT device FROM device_logs ORDER BY asked_wall DESC LIMIT ?)",
        (MAX_DEVICES,),
    )
