"""A device of processes: a running agent on a replayed recording, and its page."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lichen_lab.simulation.processes.fleet_files import toml
from models.data.streams.recording import Recording, write_npz
from protocol.tasks.task import Task
from tests.support.agent.data import toy_recording, toy_task

LICHEN = (sys.executable, "-P", "-m", "lichen.cli")
_WAIT_S = 60.0


class PageDevice:
    """The processes of one device. Usable until :meth:`stop`.

    Args:
        folder: of its configuration and state.
        fleet: its fleet.
        port: of its broker; at the default there is none.
        task: what it collects.
        recording: what its sensors deliver, again and again; None: two minutes of a toy.
        speed: of the recording.
        loop: whether the recording begins again at its end.
    """

    def __init__(
        self,
        folder: Path,
        fleet: str = "f",
        port: int = 1,
        *,
        task: Task | None = None,
        recording: Recording | None = None,
        speed: float = 10,
        loop: bool = True,
    ) -> None:
        self.config = folder / "agent.toml"
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        write_npz(folder / "toy.npz", recording or toy_recording(120))
        written = (task or toy_task()).model_dump(mode="json", exclude_defaults=True)
        (folder / "task.toml").write_text(toml(written))
        self.config.write_text(
            f'fleet = "{fleet}"\ndevice = "barn"\n'
            f'state_dir = "{folder}/state"\ncache_dir = "{folder}/cache"\n'
            f'task_file = "task.toml"\n[mqtt]\nport = {port}\n'
            f'[[source]]\nkind = "replay"\nfile = "toy.npz"\nspeed = {speed}\nloop = {str(loop).lower()}\n'
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command with this configuration."""
        command = [*LICHEN, "agent", *words, "--config", str(self.config)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_WAIT_S, check=False, env=_environment()
        )

    def start(self, *words: str, listener: socket.socket | None = None) -> subprocess.Popen[bytes]:
        """A process that stays: ``agent run``, ``agent page``; ``listener``: as systemd passes it on."""
        command = [*LICHEN, "agent", *words, "--config", str(self.config)]
        log = (self._folder / f"{words[0]}.log").open("ab")
        passed: tuple[int, ...] = ()
        if listener is not None:
            # The shell sets LISTEN_PID to the process that it becomes.
            number = listener.fileno()
            inner = f'exec 3<&{number}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
            command, passed = ["bash", "-c", inner, "bash", *command], (number,)
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(), pass_fds=passed)
        log.close()
        self._running.append(process)
        return process

    def start_agent(self) -> subprocess.Popen[bytes]:
        """The agent, with some windows to be labelled."""
        agent = self.start("run")
        end = time.monotonic() + _WAIT_S
        while self.asked() < 4:
            assert agent.poll() is None, (self._folder / "run.log").read_text()
            assert time.monotonic() < end, (self._folder / "run.log").read_text()
            time.sleep(0.2)
        return agent

    def asked(self) -> int:
        """Windows that are proposed: the recording labels those that lie between two changes of its label."""
        shown = self.run("label", "list", "--count", "4", "--format", "json")
        return len(json.loads(shown.stdout)["windows"]) if shown.returncode == 0 else 0

    def link(self, port: int) -> str:
        """A link to the page."""
        return self.run("page", "--link", "--listen", f"127.0.0.1:{port}").stdout.strip()

    def stop(self) -> None:
        """End what runs."""
        for process in self._running:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": root, "COLUMNS": "200"}


@contextmanager
def page_device(folder: Path, **keys: Any) -> Iterator[PageDevice]:
    """A device that is stopped at the end; ``keys``: of :class:`PageDevice`."""
    device = PageDevice(folder, **keys)
    try:
        yield device
    finally:
        device.stop()
