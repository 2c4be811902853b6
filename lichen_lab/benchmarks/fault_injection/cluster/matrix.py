"""One row of the matrix over the roles: 2 leads, 3 ingest processes, PostgreSQL, Mosquitto, 2 agents."""

import asyncio
import json
import math
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import psutil

from coordinator.config.coordinator import load_settings
from coordinator.lease.heartbeat import read_cluster
from coordinator.storage.location import Location
from lichen_lab.benchmarks.fault_injection.cluster.faults import CLUSTER_FAULTS, LEADS_AGAIN
from lichen_lab.benchmarks.fault_injection.faults import Free, InjectedFault
from lichen_lab.benchmarks.fault_injection.matrix import FaultMatrix, StepResult
from lichen_lab.benchmarks.fault_injection.steps import STEPS, FaultyFleet, Step, at_gate
from lichen_lab.benchmarks.fault_injection.verdict import Verdict, judge
from lichen_lab.simulation.processes.postgres import USER, PostgresServer
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR

LEADS: Final = ("lead-0", "lead-1")
INGESTS: Final = ("ingest-0", "ingest-1", "ingest-2")
_START_S: Final = 60.0
_GATED: Final = "lichen_lab.benchmarks.fault_injection.cluster.gated_roles"


def _in_transaction(name: str, what: str) -> Step:
    gate = f"commit-{what}-{{round}}"
    return Step(name, (gate,), at_gate(gate))


_BEFORE: Final = {
    "collecting": _in_transaction("committing an update", "updates"),
    "aggregating": _in_transaction("committing the count", "updates_accepted"),
    "evaluating": _in_transaction("committing the version", "versions"),
}
CLUSTER_STEPS: Final = tuple(
    one for step in STEPS for one in (_BEFORE.get(step.name), step) if one is not None
)
"""The nine steps, and three in the middle of a transaction."""


def _begun(pid: int) -> float:
    """Unix seconds at which a process began; infinite: it has ended."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return math.inf


class ClusterMatrix(FaultMatrix):
    """The trial of one fault.

    Args:
        root: an empty folder.
        fault: of :data:`CLUSTER_FAULTS`.
        steps: at which it is injected.
        light: see :class:`FaultTrial`.

    Raises:
        Misconfigured: PostgreSQL or Mosquitto is missing.
    """

    def __init__(
        self, root: Path, fault: str, steps: tuple[Step, ...] = CLUSTER_STEPS, light: Path | None = None
    ) -> None:
        words, self._harm = CLUSTER_FAULTS[fault]
        self.server = PostgresServer().start()
        self.server.sql(f"CREATE DATABASE {USER}", database="postgres")
        self.struck_at = 0.0
        self._now: tuple[Step, int] = (steps[0], 1)
        storage = {"url": self.server.url(), "connect_timeout_s": 2.0}
        super().__init__(root, InjectedFault(fault, words, self._strike), steps, light, {"storage": storage})

    @property
    def tables(self) -> Location:
        """Where the coordinator's tables are."""
        return load_settings(self.layout.config(COORDINATOR)).location

    async def start_coordinator(self) -> None:
        """Start all roles."""
        config = str(self.layout.config(COORDINATOR))
        for name in (*LEADS, *INGESTS):
            role = name.partition("-")[0]
            command = [sys.executable, "-P", "-m", _GATED, role, config]
            await self.stage.start(name, command, restart="on-failure" if role == "lead" else "always")

    def finished(self) -> bool:
        """Whether a leader has ended because all rounds are over."""
        return any(self.stage.ended(name) for name in LEADS)

    async def victim(self, who: str) -> str:
        """See :class:`coordinator.lease.heartbeat.ClusterView`: the leader is who has the lease."""
        if who == BROKER:
            return BROKER
        if who == "ingest":
            step, round_ = self._now
            at = {self.gates.process(self.gate(name, round_)) for name in step.held}
            return next((name for name in INGESTS if self.stage.children[name].pid in at), INGESTS[0])
        holder = await asyncio.to_thread(self._holder)
        leads = [name for name in LEADS if str(self.stage.children[name].pid) == holder.split("/")[1]]
        return leads[0] if who == "leader" else next(name for name in LEADS if name not in leads)

    def _holder(self) -> str:
        with self.tables.database(read_only=True) as store:
            return read_cluster(store).leader.holder

    async def _strike(self, _fleet: FaultyFleet, free: Free) -> None:
        self.struck_at = time.time()
        await self._harm(self, free)

    async def _cell(self, round_: int, step: Step) -> StepResult:
        self._now = (step, round_)
        # The fault before this one may have ended a lead, which takes seconds to start: one fault at a time.
        await self.stage.until(
            f"{self.fault.name} at {step.name!r}: both leads", self._is_another_ready, _START_S
        )
        found = await super()._cell(round_, step)
        if self.fault.name in LEADS_AGAIN:
            found.leader_s = self._new_leader_s()
        return found

    def _is_another_ready(self) -> bool:
        """Whether one lead leads and the other waits: not a former leader that is about to end."""
        last = sorted(self._asked(name) for name in LEADS)
        return last == ["lease_held_by_another", "lease_taken"]

    def _asked(self, name: str) -> str:
        """The last answer to a lead that asked for the lease, since its start; empty: it has not asked."""
        pid = self.stage.children[name].pid
        begun = math.inf if pid is None else _begun(pid)
        answers = ("lease_held_by_another", "lease_taken")
        found = [(at, event) for event in answers for at in self._times(name, event) if at > begun]
        return max(found, default=(0.0, ""))[1]

    def _times(self, name: str, event: str) -> list[float]:
        """Unix seconds of an event in a log."""
        log = self.layout.log(name).read_text(errors="replace").splitlines()
        whole = [line for line in log if line.startswith("{") and line.endswith("}")]
        lines = (json.loads(line) for line in whole if f'"{event}"' in line)
        return [datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines]

    def _new_leader_s(self) -> float | None:
        """Seconds until another process had opened the rounds, by its log; None: the leader stayed."""
        opened = [at for name in LEADS for at in self._times(name, "round_machine_open")]
        later = [at - self.struck_at for at in opened if at > self.struck_at]
        return min(later, default=None)

    async def verdict(self) -> Verdict:
        """Check the whole run."""
        return await asyncio.to_thread(
            judge, self.layout, self.task, self.witness, self._initial, self.tables
        )

    def close(self) -> None:
        """End PostgreSQL."""
        self.server.remove()
        super().close()
