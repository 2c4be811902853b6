"""A Ray cluster of one node on a port and folder of its own, as a test's operator would start it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.support.network.brokers import free_port

_PATIENCE_S = 60.0
# Whoever runs the tests may have a token, which other releases of Ray replace.
os.environ["RAY_AUTH_MODE"] = "disabled"


class RayHead:
    """The head and only node of a cluster; ``address`` is what ``compute.ray`` names."""

    def __init__(self, port: int | None = None, cpus: int = 2) -> None:
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._cpus = cpus
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            *(
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--head",
                "--block",
                f"--port={self.port}",
            ),
            *(f"--num-cpus={self._cpus}", "--include-dashboard=false", f"--temp-dir={self._folder}"),
            *("--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats"),
        ]
        with (self._folder / "out.txt").open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        until = time.monotonic() + _PATIENCE_S
        while "Ray runtime started" not in (self._folder / "out.txt").read_text():
            assert self._process.poll() is None, (self._folder / "out.txt").read_text()
            assert time.monotonic() < until, "the Ray head did not start in time"
            time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            pass

    def workers(self, name: str = "guarded") -> list[psutil.Process]:
        """The processes of tasks, or of actors of that class, that run now."""
        return [one for one in self._all() if _title(one).startswith(f"ray::{name}")]

    def _all(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def pause(self) -> None:
        """Stop all its processes: it accepts connections and does nothing."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """All its processes at once, as when a machine is gone."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the Ray head does not run"
        for one in [psutil.Process(self._process.pid), *self._all()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, number)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
