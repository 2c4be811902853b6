"""Flower's side of ``lichen bench peers``: a SuperLink, SuperNodes and the app of ``flower_app.py``.

Processes and settings are Flower's defaults for a deployment, without TLS as lichen's are. With them a
SuperNode starts a process for each message, and looks for messages every 3 s.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from lichen_lab.benchmarks.suite.peers.measure import Meters
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes.embedded_broker import HOST, free_port
from lichen_lab.simulation.processes.process import ONE_THREAD
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task

ENVIRONMENT: Final = Path(".venv-flower")
VARIABLE: Final = "LICHEN_FLOWER"
"""The folder of another environment that has Flower."""
_LINK: Final = "superlink"
_READY_S: Final = 60.0
_SUBMIT_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[4]
_PROJECT: Final = """
[project]
name = "peers"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "lichen"

[tool.flwr.app.components]
serverapp = "peers.app:server"
clientapp = "peers.app:client"

[tool.flwr.app.config]
devices = {devices}
"""

_CONNECTION: Final = """
[superlink]
default = "here"

[superlink.here]
address = "{host}:{port}"
insecure = true
"""


def require_flower() -> Path:
    """The folder of the programs of Flower's environment.

    Raises:
        Misconfigured: there is none.
    """
    folder = Path(os.environ.get(VARIABLE, ENVIRONMENT)).absolute() / "bin"
    if not (folder / "flower-superlink").is_file():
        raise Misconfigured(f"{folder} has no Flower: make flower (or set {VARIABLE} to its environment)")
    return folder


def version(programs: Path) -> str:
    """Of Flower."""
    words = [str(programs / "python"), "-c", "from importlib.metadata import version; print(version('flwr'))"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


class FlowerFleet(ProcessFleet):
    """SuperNodes; each connects through a relay.

    Args:
        task: what they learn.
        windows: the window set of each device.
        port: of the SuperLink.
    """

    def __init__(self, task: Task, windows: Sequence[Path], port: int) -> None:
        super().__init__(task, port)
        self._programs = require_flower()
        self._names = [f"device-{number}" for number in range(len(windows))]
        for number, file in enumerate(windows):
            shutil.copyfile(file, self.root / f"windows-{number}.npz")
        self._descendants: set[psutil.Process] = set()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # its processes start others in sessions of their own
        running = [child.pid for child in self.bed.children.values() if child.pid is not None]
        for pid in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._descendants |= set(psutil.Process(pid).children(recursive=True))
        super().__exit__(kind, value, trace)
        for one in self._descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

    def begin(self, meters: Meters) -> Self:
        """Start all processes and submit the run.

        Raises:
            Transient: the SuperLink does not answer, or refuses the run.
        """
        (self.root / "task.json").write_text(self.task.model_dump_json())
        app = self.root / "app" / "peers"
        app.mkdir(parents=True)
        (app / "__init__.py").touch()
        shutil.copyfile(Path(__file__).with_name("flower_app.py"), app / "app.py")
        (app.parent / "pyproject.toml").write_text(_PROJECT.format(devices=len(self._names)))
        where = ("--insecure", "--host", HOST, "--port")
        link = [str(self._programs / "flower-superlink"), *where, str(self.port)]
        self.start(_LINK, [*link, "--disable-runtime-dependency-installation"], self._env())
        self._wait_for_link()
        for number, (name, port) in enumerate(zip(self._names, meters.ports, strict=True)):
            node = [str(self._programs / "flower-supernode"), *where, str(free_port())]
            node += ["--superlink", f"{HOST}:{port}", "--node-config", f"partition-id={number}"]
            self.start(name, node, self._env())
        self._submit(app.parent)
        return self

    def _env(self) -> dict[str, str]:
        """The environment: Flower's programs, and lichen's code of this checkout for training."""
        return {
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT),
            "FLWR_HOME": str(self.root / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PEERS_FOLDER": str(self.root),
            **ONE_THREAD,
        }

    def _wait_for_link(self) -> None:
        until = time.monotonic() + _READY_S
        while True:
            with socket.socket() as sock:
                if sock.connect_ex((HOST, self.port)) == 0:
                    return
            if self.failure() or time.monotonic() > until:
                raise Transient(f"Flower's SuperLink does not listen: {self.said(_LINK)[-600:]}")
            time.sleep(0.1)

    def _submit(self, app: Path) -> None:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(_CONNECTION.format(host=HOST, port=self.port))
        done = subprocess.run(
            [str(self._programs / "flwr"), "run", str(app), "here"],
            env=os.environ | self._env(),
            capture_output=True,
            text=True,
            timeout=_SUBMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise Transient(f"Flower refused the run: {(done.stdout + done.stderr)[-600:]}")

    def _lines(self, file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def rounds(self) -> int:
        """Rounds whose mean was made.

        Raises:
            Transient: a round had no update.
        """
        lines = self._lines(self.root / "rounds.jsonl")
        if lines and not lines[-1]["arrays"]:
            raise Transient(f"Flower aggregated nothing: {self.said(self._names[0])[-600:]}")
        return len(lines)

    def devices(self) -> Sequence[int]:
        """The SuperNodes; the processes of the app are their descendants."""
        return [self.pid(name) for name in self._names]

    def servers(self) -> Sequence[int]:
        """The SuperLink; the server's app is its descendant."""
        return [self.pid(_LINK)]

    def trained_cpu_s(self) -> float:
        """From the app's logs."""
        files = [self.root / f"train-{number}.jsonl" for number in range(len(self._names))]
        return sum(float(line["train_cpu_s"]) for file in files for line in self._lines(file))

    def failure(self) -> str:
        """A process that ended for good."""
        return str(self.bed.failure or "")
