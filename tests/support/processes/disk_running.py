"""Daemons on a failing disk, in a mount namespace as :mod:`tests.support.processes.disk_child`.

``coordinator|agent FOLDER COLUMN PORT``: its exit status, its output, and whether it acknowledged.
"""

import asyncio
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from protocol.frames.frame import digest
from tests.support.coordinator.fake import FakeDevice, frame, header, tiny_task
from tests.support.processes.disk_child import call, daemon, disk, fill, program, run

_WAIT_S = 30.0
_RESENDS_S = 1.0
"""The device repeats what was not acknowledged."""


@dataclass
class Watched:
    """A daemon under observation."""

    process: Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """All of its log."""
        return self.log.read_text()

    @property
    def status(self) -> int | None:
        """None: it still runs."""
        return self.process.poll()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition, or for the daemon's end."""
        async with asyncio.timeout(_WAIT_S):
            while not true() and self.status is None:  # noqa: ASYNC110 - any condition at all
                await asyncio.sleep(0.05)


def worsen(place: Path, state: Path, file: Path, column: str) -> Callable[[], object] | None:
    """Put the disk into a column's state; returns the function that repairs it, if there is one."""
    if column == "full":
        return fill(place).unlink
    if column == "locked":
        holder = sqlite3.connect(file, isolation_level=None, timeout=30)
        holder.execute("BEGIN IMMEDIATE")
        return holder.close
    if column == "read-only":
        run("mount", "-o", "remount,abort", str(place))
    elif column == "replaced":
        run("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(state))
    else:
        shutil.rmtree(state)
    return None


WORDS = {
    "full": "is full",
    "locked": "another process holds",
    "read-only": "is read-only",
    "vanished": "it is gone",
    "replaced": "it is gone",
}


async def coordinator(folder: Path, column: str, port: int) -> dict[str, object]:
    """A round is open and one update comes: no receipt while the disk cannot be written."""
    place = disk(folder)
    task = tiny_task(count=5, min_devices=2)
    settings = {"log": {"level": "warning", "format": "json"}}
    given = {
        "root": str(place),
        "port": port,
        "task": task.model_dump(mode="json"),
        "slow": "",
        "wait_s": 0.5,
    }
    (folder / "args.json").write_text(json.dumps(given | {"settings": settings}))
    log = folder / f"coordinator-{column}.log"
    child = Watched(program(["-m", "tests.support.coordinator.child", str(folder / "args.json")], log), log)
    state, silent = place / "coordinator", FakeDevice(port, "b", mute=True)
    try:
        async with FakeDevice(port, "a"), silent as device:
            await device.wait_for(lambda: device.offers)
            relieve = worsen(place, state, state / "coordinator.sqlite3", column)
            update = frame(header("b", 1, device.offers[-1].base), 2.0, device.size)
            device.sent[digest(update)] = update
            await device.send(update)
            await child.until(lambda: WORDS[column] in child.said)
            await asyncio.sleep(_RESENDS_S)
            await child.until(lambda: column not in {"vanished", "replaced"})
            found = {
                "status": child.status,
                "state": str(state),
                "early": [f"{one.status} {one.reason}: {one.detail}" for one in device.receipts],
            }
            why = call(["coordinator", "status", "--why", "-c", str(folder / "running.toml")])
            if relieve is not None:
                relieve()
                await device.wait_for(lambda: device.receipts)
            return found | {
                "said": child.said,
                "why": why,
                "receipts": [one.status for one in device.receipts],
            }
    finally:
        child.process.kill()
        child.process.wait()


async def agent(folder: Path, column: str, _port: int) -> dict[str, object]:
    """Sensors deliver all the time: windows wait in memory while the disk cannot be written."""
    place, status = disk(folder), folder / "running-cache/status.json"
    shutil.rmtree(folder / "running-cache", ignore_errors=True)
    log = folder / f"agent-{column}.log"
    found = Watched(daemon(["agent", "run", "-c", str(folder / "running-agent.toml")], log), log)
    state = place / "state"
    try:
        await found.until(lambda: status.exists() and any(state.glob("store/windows-*-wal")))
        file = next(state.glob("store/windows-*.sqlite3"))
        relieve = worsen(place, state, file, column)
        await found.until(lambda: WORDS[column] in found.said)
        await found.until(lambda: column not in {"vanished", "replaced"})
        told = {"status": found.status, "state": str(state)}
        if relieve is not None:
            relieve()
            await found.until(lambda: "windows_written_again" in found.said)
        return told | {"said": found.said, "recovered": "windows_written_again" in found.said}
    finally:
        found.process.kill()
        found.process.wait()


if __name__ == "__main__":
    what = {"coordinator": coordinator, "agent": agent}[sys.argv[1]]
    json.dump(asyncio.run(what(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))), sys.stdout)
