"""The faults of the matrix over the roles."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from lichen_lab.benchmarks.fault_injection.faults import Free
from lichen_lab.simulation.processes.postgres import PostgresServer
from lichen_lab.simulation.processes.testbed import BROKER, Testbed

_AWAY_S: Final = 0.3
STOPPED_S: Final = 30.0


class FaultyCluster(Protocol):
    """The fleet of one row, as faults harm it."""

    stage: Testbed
    server: PostgresServer
    struck_at: float
    """Unix seconds from which on a process could lead again; at first those of the fault."""

    async def victim(self, who: str) -> str:
        """The name of a process: ``leader``, ``waiting``, ``ingest`` or ``broker``."""


ClusterHarm = Callable[[FaultyCluster, Free], Awaitable[None]]


def _kill(who: str) -> ClusterHarm:
    async def harm(fleet: FaultyCluster, free: Free) -> None:
        name = await fleet.victim(who)
        await fleet.stage.kill(name)
        free()
        await asyncio.sleep(_AWAY_S)
        await fleet.stage.start(name)

    return harm


def _stop(who: str) -> ClusterHarm:
    async def harm(fleet: FaultyCluster, free: Free) -> None:
        child = fleet.stage.children[await fleet.victim(who)]
        child.signal(signal.SIGSTOP)
        try:
            free()
            await asyncio.sleep(STOPPED_S)
        finally:
            child.signal(signal.SIGCONT)

    return harm


async def _crash_server(fleet: FaultyCluster, free: Free) -> None:
    await asyncio.to_thread(fleet.server.crash)
    free()
    await asyncio.to_thread(fleet.server.start)


async def _freeze_server(fleet: FaultyCluster, free: Free) -> None:
    await asyncio.to_thread(fleet.server.freeze)
    try:
        free()
        await asyncio.sleep(STOPPED_S)
    finally:
        await asyncio.to_thread(fleet.server.thaw)
        fleet.struck_at = time.time()


_WHO: Final = {
    "leader": "the process that leads",
    "waiting": "the process that would lead next",
    "ingest": "the ingest process at the step, else one of the three",
    BROKER: "Mosquitto",
}
CLUSTER_FAULTS: Final[dict[str, tuple[str, ClusterHarm]]] = {
    **{f"kill-{who}": (f"SIGKILL for {words}, back after 0.3 s", _kill(who)) for who, words in _WHO.items()},
    "crash-postgres": ("pg_ctl -m immediate for PostgreSQL, started again at once", _crash_server),
    **{f"stop-{who}": (f"SIGSTOP for {words}, for 30 s", _stop(who)) for who, words in _WHO.items()},
    "stop-postgres": ("SIGSTOP for all processes of PostgreSQL, for 30 s", _freeze_server),
}
"""Name -> words and harm."""
LEADS_AGAIN: Final = ("kill-leader", "stop-leader", "crash-postgres", "stop-postgres")
"""Faults after which some process must lead again soon; if PostgreSQL is away, after it is back."""
