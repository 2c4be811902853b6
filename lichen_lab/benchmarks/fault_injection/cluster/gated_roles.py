"""A real role behind gates: ``python -P -m ...cluster.gated_roles lead|ingest coordinator.toml``.

Besides those of :mod:`harness.gated_coordinator` there are gates inside transactions, after all their
statements and before the commit, with all their locks: ``commit-updates-<round>`` of an ``ingest`` process,
``commit-updates_accepted-<round>`` and ``commit-versions-<version>`` of the leader.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from coordinator.cluster.app import Outer, run_ingest, run_lead
from coordinator.config.coordinator import load_settings
from coordinator.daemon import Coordinator
from coordinator.task import load_task
from coordinator.workers.jobs import WorkerJobs
from lichen_lab.benchmarks.fault_injection.harness.gated_coordinator import GatedJobs, GatedServer
from lichen_lab.benchmarks.fault_injection.harness.gated_worker import LIGHT
from lichen_lab.benchmarks.fault_injection.harness.gates import gate
from runtime import logs
from runtime.process.daemon import run

_WRITES: Final = re.compile(r"\s*INSERT INTO (\w+)")
_GATE: Final = "gate"


def _note(connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
    """Remember what the open transaction writes."""
    found = _WRITES.match(statement)
    row = parameters[0] if isinstance(parameters, list | tuple) and parameters else parameters
    match found and found[1]:
        case "updates":
            connection.info[_GATE] = f"commit-updates-{row['round']}"
        case "versions":
            connection.info[_GATE] = f"commit-versions-{row['version']}"
        case "events" if isinstance(event := row["event"].obj, dict) and "round" in event:
            connection.info[_GATE] = f"commit-{event['type']}-{event['round']}"
        case _:
            pass


def _hold(connection: sa.Connection) -> None:
    """Wait before the commit of what was noted."""
    name = connection.info.pop(_GATE, None)
    if name is not None:
        gate(name)


async def _serve(role: str, config: Path) -> int:
    settings = load_settings(config)
    logs.configure(settings.log)
    task, spec = load_task(settings)
    server: Any = GatedServer(spec.server())
    sa.event.listen(sa.Engine, "before_cursor_execute", _note)
    sa.event.listen(sa.Engine, "commit", _hold)
    if role == "ingest":
        return await run_ingest(settings, task, server)
    light = os.environ.get(LIGHT)
    real = WorkerJobs(task, settings.state_dir / "jobs", settings.evaluation.data, settings.worker, None)
    work = GatedJobs(real, None if light is None else Path(light))

    def opened(coordinator: Coordinator, _: object) -> None:
        work.follow(lambda: coordinator.driver.state.version)

    return await run_lead(settings, task, server, Outer(jobs=work, opened=opened))


if __name__ == "__main__":
    sys.exit(run(lambda: _serve(sys.argv[1], Path(sys.argv[2]))))
