"""The promises that must hold after a trial, whatever was killed: compares journal, wire, logs and refold."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.location import Location
from coordinator.storage.run_id import RunId
from edge_agent.storage.agent_storage import SPOOL
from lichen_lab.benchmarks.fault_injection import refold
from lichen_lab.simulation.processes.fleet_files import FleetFiles
from lichen_lab.simulation.processes.wire_observer import WireObserver
from models.contract import Blobs
from protocol.errors import Transient
from protocol.tasks.task import Task
from runtime.storage.spool import Spool


@dataclass(frozen=True)
class FinalJournal:
    """The coordinator's journal after the end.

    Attributes:
        versions: version -> its row.
        updates: (round, device) -> its row.
    """

    versions: Mapping[int, dict[str, Any]]
    updates: Mapping[tuple[int, str], dict[str, Any]]

    @classmethod
    def read(cls, where: Location | Path) -> "FinalJournal":
        """Read the database of a coordinator that has ended."""
        with Location.at(where).database(read_only=True) as store:
            versions = {row["version"]: row for row in store.rows(sa.select(schema.versions))}
            updates = {(row["round"], row["device"]): row for row in store.rows(sa.select(schema.updates))}
        return cls(versions, updates)

    def counted(self) -> dict[int, list[tuple[str, str]]]:
        """Round -> (device, digest) of the updates that its version counts."""
        return {
            number: [(d, self.updates[number, d]["digest"]) for d in sorted(row["devices"])]
            for number, row in self.versions.items()
            if number > 0
        }


@dataclass
class Verdict:
    """The result of the check.

    Attributes:
        violations: broken promises, as text.
        compared: versions that equal the undisturbed fold, bit for bit.
        accepted: updates in the journal.
        acknowledged: different updates whose receipt was seen on the wire or in an agent's log.
        waiting: accepted updates whose receipt was not seen, and which their agent still keeps to send again.
        lost: accepted updates that were reported as unusable later.
    """

    violations: list[str] = field(default_factory=list)
    compared: int = 0
    accepted: int = 0
    acknowledged: int = 0
    waiting: int = 0
    lost: int = 0


def judge(
    layout: FleetFiles,
    task: Task,
    witness: WireObserver,
    first: Callable[[Task, Path], Blobs] = refold.initial,
    tables: Location | None = None,
) -> Verdict:
    """Check the files and messages of a trial that has ended.

    Args:
        layout: its files.
        task: what was learned.
        witness: of its messages.
        first: makes version 0 again.
        tables: of the coordinator; None: in its state folder.
    """
    tables = tables or Location(layout.state("coordinator"))
    verdict, journal = Verdict(), FinalJournal.read(tables)
    verdict.accepted = len(journal.updates)
    verdict.lost = sum(1 for row in journal.updates.values() if row["lost"])
    known = {(round_, device, mark) for round_, device, mark in witness.receipts}
    logged = {(round_, device) for device in layout.devices for round_ in _logged(layout.log(device))}
    heard = {(round_, device) for round_, device, _ in known} | logged
    verdict.acknowledged = len(heard)
    waiting = {(round_, device) for device in layout.devices for round_ in _spooled(layout.state(device))}
    verdict.waiting = len((journal.updates.keys() & waiting) - heard)
    verdict.violations += list(_acknowledged(journal, known, logged))
    verdict.violations += list(_chain(journal, task))
    if not verdict.violations:
        _compare(layout, task, witness, first, journal, verdict, tables)
    return verdict


def _logged(log: Path) -> Iterator[int]:
    """Rounds whose receipt is in the agent's log."""
    if log.is_file():
        for line in log.read_text(errors="replace").splitlines():
            if '"update_accepted"' in line and line.startswith("{"):
                yield int(json.loads(line)["round"])


def _spooled(state: Path) -> list[int]:
    """Rounds whose update the agent still keeps."""
    if not (state / SPOOL).is_file():
        return []
    with contextlib.closing(Spool(state / SPOOL, budget_bytes=sys.maxsize)) as spool:
        return [entry.round for entry in spool.pending()]


def _acknowledged(
    journal: FinalJournal, receipts: set[tuple[int, str, str]], logged: set[tuple[int, str]]
) -> Iterator[str]:
    """Promise 1: an acknowledged update is counted once, or reported as refused."""
    for round_, device in sorted({(r, d) for r, d, _ in receipts} | logged):
        row = journal.updates.get((round_, device))
        if row is None:
            yield f"round {round_}: {device}'s update was acknowledged and is not in the journal"
        elif not row["lost"] and device not in journal.versions.get(round_, {}).get("devices", ()):
            yield f"round {round_}: {device}'s update was acknowledged and is not counted in the version"
    for round_, device, mark in sorted(receipts):
        row = journal.updates.get((round_, device))
        if row is not None and row["digest"] != mark and not row["lost"]:
            yield f"round {round_}: {device} has a receipt for {mark[:12]}, counted is {row['digest'][:12]}"


def _chain(journal: FinalJournal, task: Task) -> Iterator[str]:
    """Every version once, each the child of the one before, and made of accepted updates."""
    if sorted(journal.versions) != list(range(task.rounds.count + 1)):
        yield f"versions {sorted(journal.versions)}, expected 0 to {task.rounds.count}"
        return
    for number in range(1, task.rounds.count + 1):
        row = journal.versions[number]
        if row["parent"] != journal.versions[number - 1]["manifest"]:
            yield f"version {number} is not a child of version {number - 1}"
        if len(row["devices"]) != len(set(row["devices"])):
            yield f"version {number} counts a device twice: {row['devices']}"
        if len(row["devices"]) < task.rounds.min_devices:
            yield f"version {number} was closed with {len(row['devices'])} of {task.rounds.min_devices}"
        for device in row["devices"]:
            update = journal.updates.get((number, device))
            if update is None or update["lost"]:
                yield f"version {number} counts {device}, which has no accepted update"


def _compare(  # noqa: PLR0917 - one place calls it
    layout: FleetFiles,
    task: Task,
    witness: WireObserver,
    first: Callable[[Task, Path], Blobs],
    journal: FinalJournal,
    verdict: Verdict,
    tables: Location,
) -> None:
    """Compare the fleet's versions bit for bit with the undisturbed fold of exactly the accepted updates."""
    try:
        folder = layout.root / "again"
        state = first(task, folder / "job")
        with ExitStack() as stack:
            store = None if tables.schema is None else stack.enter_context(tables.database())
            run = RunId(tables.state_dir, shared=store)
            again = refold.manifests(task, state, journal.counted(), witness.frame, folder, run=run)
    except Transient as error:
        verdict.violations.append(str(error))
        return
    for number, mark in enumerate(again):
        if journal.versions[number]["manifest"] == mark:
            verdict.compared += 1
        else:
            verdict.violations.append(f"version {number} differs from the undisturbed fold")
