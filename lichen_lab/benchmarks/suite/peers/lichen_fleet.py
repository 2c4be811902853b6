"""lichen's side of ``lichen bench peers``: a coordinator, Mosquitto and real agents."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from coordinator.status.history import read
from lichen_lab.benchmarks.suite.peers.measure import Meters
from lichen_lab.benchmarks.support import timed_worker
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST
from lichen_lab.simulation.processes.process import ONE_THREAD
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

_REPLAY: Final = 200.0
"""Recorded seconds a second: the windows are there before the first round."""


class LichenFleet(ProcessFleet):
    """Real agents; each connects through a relay.

    Args:
        task: what they learn.
        recordings: one a device.
        windows: that each stores.
        port: of the broker.
    """

    def __init__(self, task: Task, recordings: Sequence[Path], windows: int, port: int) -> None:
        super().__init__(task, port)
        self._recordings, self._windows = recordings, windows
        self._names = [f"device-{number}" for number in range(len(recordings))]

    def begin(self, meters: Meters) -> Self:
        """Start all processes.

        Raises:
            Misconfigured: Mosquitto is not installed.
        """
        self.start(BROKER, mosquitto.command(self.root / "mosquitto", HOST, self.port))
        self._state = self.coordinator(env=ONE_THREAD, export={"enabled": False}, spread_s=0.0)
        for name, file, port in zip(self._names, self._recordings, meters.ports, strict=True):
            self.agent(
                name,
                file,
                speed=_REPLAY,
                port=port,
                env={timed_worker.VARIABLE: str(self._log(name)), **ONE_THREAD},
                learn={"module": timed_worker.__name__, "max_windows": self._windows},
                infer={"enabled": False},
            )
        return self

    def _log(self, name: str) -> Path:
        return self.root / f"{name}.train"

    def rounds(self) -> int:
        """Versions but the first."""
        try:
            return int(read(self._state, last=1)["version"])
        except Misconfigured:  # before the coordinator made its database
            return 0

    def devices(self) -> Sequence[int]:
        """The agents; workers are their children."""
        return [self.pid(name) for name in self._names]

    def servers(self) -> Sequence[int]:
        """The coordinator and the broker."""
        return [self.pid(COORDINATOR), self.pid(BROKER)]

    def trained_cpu_s(self) -> float:
        """From the timed workers' logs."""
        files = [file for file in map(self._log, self._names) if file.is_file()]
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sum(float(line["train_cpu_s"]) for line in lines)

    def failure(self) -> str:
        """A process that ended for good."""
        return str(self.bed.failure or "")
