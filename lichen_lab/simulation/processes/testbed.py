"""Real processes for benchmarks: broker, coordinator and agents under one folder, and what they cost."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import psutil

from lichen_lab.simulation.data.spar_fleet import write_toml
from lichen_lab.simulation.processes.embedded_broker import READY, free_port
from protocol.errors import Transient
from protocol.tasks.task import Task

FLEET: Final = "bench"
_GRACE_S: Final = 10.0
_POLL_S: Final = 0.1
_LOG_TAIL: Final = 1500


class Fleet:
    """A context: what it starts, it stops, the latest first; its folder goes with it.

    Args:
        task: written to ``task.toml``.
        min_devices: no round opens with fewer agents.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._folder = tempfile.TemporaryDirectory(prefix="lichen-bench-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)
        self.port = free_port()
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Self:
        write_toml(self.root / "task.toml", self.task.model_dump(mode="json", exclude_none=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, process in reversed(self._running):
            stop(process)
        self._folder.cleanup()

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program; what it says goes to ``NAME.log``."""
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd=self.root,
                start_new_session=True,
            )
        self._running.append((name, process))
        return process

    def broker(self) -> None:
        """Start the embedded broker and wait until it listens."""
        self.start(
            "broker",
            [
                sys.executable,
                "-P",
                "-m",
                "lichen_lab.simulation.processes.embedded_broker",
                "--port",
                str(self.port),
            ],
        )
        self.until(lambda: READY in self.said("broker"), 20.0, "the broker listens")

    def coordinator(self, **settings: Any) -> Path:
        """Start a coordinator; returns its state folder."""
        state = self.root / "coordinator"
        file = self.root / "coordinator.toml"
        table = {
            "fleet": FLEET,
            "state_dir": str(state),
            "task": str(self.root / "task.toml"),
            "mqtt": {"host": "127.0.0.1", "port": self.port},
            "log": {"format": "json"},
            **settings,
        }
        write_toml(file, table)
        self.start("coordinator", lichen("coordinator", "serve", "--config", str(file)))
        return state

    def agent(
        self,
        name: str,
        recording: Path,
        *,
        speed: float,
        command: Callable[..., list[str]] | None = None,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> subprocess.Popen[bytes]:
        """Start an agent that replays a recording.

        Args:
            name: of the device.
            recording: npz.
            speed: recorded seconds per real second.
            command: ``lichen WORDS`` in another environment.
            port: the broker's, where it is not the fleet's own.
            env: added to the environment.
            **settings: of ``agent.toml``.
        """
        file = self.root / f"{name}.toml"
        table = {
            "fleet": FLEET,
            "device": name,
            "state_dir": str(self.root / name),
            "cache_dir": str(self.root / name / "cache"),
            "mqtt": {"host": "127.0.0.1", "port": port or self.port},
            "log": {"format": "json"},
            "source": [{"kind": "replay", "file": str(recording), "speed": speed}],
            **settings,
        }
        write_toml(file, table)
        return self.start(name, (command or lichen)("agent", "run", "--config", str(file)), env)

    def pid(self, name: str) -> int:
        """The process that was started last under that name."""
        return next(process.pid for known, process in reversed(self._running) if known == name)

    def kill(self, name: str) -> None:
        """SIGKILL to the process group that was started last under that name; it may be started again."""
        at = max(at for at, (known, _) in enumerate(self._running) if known == name)
        _, process = self._running.pop(at)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def said(self, name: str) -> str:
        """A program's log."""
        file = self.root / f"{name}.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for something.

        Raises:
            Transient: it did not come in time, or a program ended with an error; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            for name, process in self._running:
                if process.poll() not in (None, 0):
                    raise Transient(
                        f"{name} ended with status {process.returncode}: {self.said(name)[-_LOG_TAIL:]}"
                    )
            if time.monotonic() > deadline:
                ends = "\n".join(f"{name}: {self.said(name)[-_LOG_TAIL // 3 :]}" for name, _ in self._running)
                raise Transient(f"waited {timeout_s:g} s until {what}; the logs end:\n{ends}")
            time.sleep(_POLL_S)


def lichen(*words: str) -> list[str]:
    """The command line ``lichen WORDS`` in this environment."""
    return [sys.executable, "-P", "-m", "lichen", *words]


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to its whole group where that was not enough."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process and its children: the living ones and those it has reaped."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
    return total


def noise_recording(path: Path, task: Task, windows: int, seed: int = 0) -> Path:
    """A recording of noise in so many windows, the classes in turn for 40 s (1 window in 15 spans two)."""
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
