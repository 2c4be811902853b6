"""The fleet of a benchmark: the processes of a :class:`Testbed`, driven by blocking calls."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import psutil

from lichen_lab.simulation.processes import embedded_broker
from lichen_lab.simulation.processes.fleet_files import FleetFiles, write_toml
from lichen_lab.simulation.processes.process import Child
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Testbed, lichen
from protocol.tasks.task import Task

FLEET: Final = "bench"


class ProcessFleet:
    """A context: what it starts, it stops; its folder goes with it.

    Args:
        task: written to ``task.toml``.
        port: of the broker; 0 takes a free one.
    """

    def __init__(self, task: Task, port: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lichen-bench-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)
        self.files = FleetFiles(self.root, port or embedded_broker.free_port(), FLEET)
        self.bed = Testbed(self.files)
        self.task, self.port = task, self.files.port
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.files.write_task(self.task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self.bed.__aexit__(kind, value, trace))
        self._runner.close()
        self._folder.cleanup()

    def start(self, name: str, command: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Child:
        """Start a program; see :meth:`Testbed.start`. It is not restarted if it ends."""
        return self._runner.run(self.bed.start(name, command, restart="no", env=env))

    def broker(self) -> None:
        """Start the embedded broker and wait until it listens."""
        self.start(BROKER, embedded_broker.command(self.port))

    def coordinator(self, env: Mapping[str, str] | None = None, **tables: Any) -> Path:
        """Start a coordinator; returns its state folder."""
        write_toml(self.files.config(COORDINATOR), self.files.coordinator(**tables))
        self.start(COORDINATOR, env=env)
        return self.files.state(COORDINATOR)

    def agent(
        self,
        name: str,
        recording: Path | None = None,
        *,
        speed: float = 1.0,
        command: Callable[..., list[str]] = lichen,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        **tables: Any,
    ) -> Child:
        """Start an agent that replays a recording, if one is given.

        Args:
            name: of the device.
            recording: npz; None: none, or ``source`` of ``tables``.
            speed: recorded seconds per real second.
            command: ``lichen WORDS`` in another environment.
            port: the broker's, where it is not the fleet's own.
            env: added to the environment.
            **tables: of ``agent.toml``.
        """
        replay = {"kind": "replay", "file": str(recording), "speed": speed}
        source = {} if recording is None else {"source": [replay]}
        ports = {} if port is None else {"mqtt": {"port": port}}
        file = self.files.config(name)
        write_toml(file, self.files.agent(name, ports, tables, **source))
        return self.start(name, command("agent", "run", "--config", str(file)), env)

    def pid(self, name: str) -> int:
        """Of the process with that name.

        Raises:
            ValueError: it does not run.
        """
        pid = self.bed.children[name].pid
        if pid is None:
            raise ValueError(f"{name} does not run")
        return pid

    def kill(self, name: str) -> None:
        """Kill the process group with SIGKILL; the program may be started again."""
        self._runner.run(self.bed.kill(name))

    def stop(self, name: str) -> None:
        """Stop the program in order."""
        self._runner.run(self.bed.stop(name))

    def said(self, name: str) -> str:
        """The text of a program's log."""
        return self.bed.said(name)

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition; see :meth:`Testbed.until`."""
        self._runner.run(self.bed.until(what, condition, timeout_s))


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds of a process and its children, living and reaped."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
    return total


def noise_recording(path: Path, task: Task, windows: int, seed: int = 0) -> Path:
    """A noise recording with ``windows`` windows; the class changes every 40 s (1 window in 15 spans two)."""
    rng = np.random.default_rng(seed)
    seconds = (windows + 1) * task.window.stride_s + 2 * task.window.length_s
    arrays: dict[str, Any] = {}
    for modality in task.modalities:
        count = round(seconds * modality.rate_hz)
        arrays[f"{modality.name}/t"] = np.arange(count) / modality.rate_hz
        values = modality.offset + modality.scale * rng.standard_normal((count, modality.channels))
        arrays[f"{modality.name}/values"] = values.astype(np.float32)
    changes = np.arange(0, seconds, 40.0)
    arrays["label/t"] = changes
    arrays["label/values"] = (np.arange(len(changes)) % len(task.labels)).astype(np.int64)
    np.savez(path, **arrays)
    return path
