"""The faults of the matrix: each does its harm to real processes, and ends it again."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.benchmarks.fault_injection.steps import FaultyFleet
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR

_AWAY_S: Final = 0.3
_CUTS: Final = 3
_APART_S: Final = 0.25
_SLOW_BYTES_S: Final = 3000.0
_SLOW_S: Final = 1.5
_BLACK_S: Final = 2.5
"""Longer than the links of a trial wait for an answer to their ping."""
_FULL_S: Final = 1.5


Free = Callable[[], None]


@dataclass(frozen=True)
class InjectedFault:
    """One row of the matrix.

    Attributes:
        name: for the table and ``--fault``.
        words: description of the harm.
        harm: does the harm and ends it; the gates of the step are still held when it begins, and are opened
            by ``free`` when it has done the harm.
        disks: each daemon's state is on a disk of its own.
    """

    name: str
    words: str
    harm: Callable[[FaultyFleet, Free], Coroutine[Any, Any, None]]
    disks: bool = False


def _kill(name: str | None) -> Callable[[FaultyFleet, Free], Coroutine[Any, Any, None]]:
    """SIGKILL; None: the target agent."""

    async def harm(fleet: FaultyFleet, free: Free) -> None:
        victim = name or fleet.target
        await fleet.stage.kill(victim)
        if victim in fleet.proxies:  # what it has sent and nobody has received is lost with it
            fleet.proxies[victim].cut()
        free()
        await asyncio.sleep(_AWAY_S)
        await fleet.stage.start(victim)

    return harm


async def _cut(fleet: FaultyFleet, free: Free) -> None:
    for _ in range(_CUTS):
        for proxy in fleet.proxies.values():
            proxy.cut()
        free()
        await asyncio.sleep(_APART_S)


async def _throttle(fleet: FaultyFleet, free: Free) -> None:
    free()
    for proxy in fleet.proxies.values():
        proxy.throttle(_SLOW_BYTES_S)
    await asyncio.sleep(_SLOW_S)
    for proxy in fleet.proxies.values():
        proxy.heal()


async def _black_hole(fleet: FaultyFleet, free: Free) -> None:
    for proxy in fleet.proxies.values():
        proxy.black_hole()
    free()
    await asyncio.sleep(_BLACK_S)
    for proxy in fleet.proxies.values():
        proxy.heal()


async def _full(fleet: FaultyFleet, free: Free) -> None:
    for disk in fleet.disks.values():
        await asyncio.to_thread(disk.fill)
    free()
    await asyncio.sleep(_FULL_S)
    for disk in fleet.disks.values():
        await asyncio.to_thread(disk.free)


async def _read_only(fleet: FaultyFleet, free: Free) -> None:
    """The recovery of an operator: stop the remaining processes, repair, start."""
    for disk in fleet.disks.values():
        await asyncio.to_thread(disk.fail)
    free()
    await asyncio.sleep(_FULL_S)
    for name in fleet.disks:
        await fleet.stage.kill(name)
    for disk in fleet.disks.values():
        await asyncio.to_thread(disk.repair)
    for name in fleet.disks:
        await fleet.stage.start(name)


FAULTS: Final = {
    fault.name: fault
    for fault in (
        InjectedFault("kill-broker", "SIGKILL for Mosquitto, back after 0.3 s", _kill(BROKER)),
        InjectedFault("kill-agent", "SIGKILL for the agent, back after 0.3 s", _kill(None)),
        InjectedFault(
            "kill-coordinator", "SIGKILL for the coordinator, back after 0.3 s", _kill(COORDINATOR)
        ),
        InjectedFault("cut", "every connection ends by RST, three times in a second", _cut),
        InjectedFault("throttle", "3 kB/s for 1.5 s", _throttle),
        InjectedFault("black-hole", "nothing passes for 2.5 s, no connection ends", _black_hole),
        InjectedFault("disk-full", "no block free for 1.5 s", _full, disks=True),
        InjectedFault(
            "read-only", "the file system fails (remount,abort), repaired after 1.5 s", _read_only, disks=True
        ),
    )
}
