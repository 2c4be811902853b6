"""A fleet of processes beside a broker: the coordinator with the tiny method, devices, and the console."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.coordinator.fake import FLEET, tiny_task
from tests.support.network.brokers import free_port

_ROOT = Path(__file__).parents[3]
_LICHEN = ("-P", "-m", "lichen.cli")
_WAIT_S = 60.0
_STAGES = {"mode": "staged", "canary": "label:site=barn", "waves": [1.0], "soak_s": 0.0}


class LiveFleet:
    """Rounds are opened from three devices on, two in all; the first version is tried at the site ``barn``.

    Args:
        folder: of its configuration and state.
        port: of the broker.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.broker = port
        self._config = folder / "coordinator.toml"
        self._args = folder / "args.json"
        self._console = free_port()
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = f"http://127.0.0.1:{self._console}"
        (folder / "w.npz").touch()
        (folder / "task.toml").touch()
        self._config.write_text(
            f'fleet = "{FLEET}"\nstate_dir = "coordinator"\ntask = "task.toml"\n[mqtt]\nport = {port}\n'
            '[rollout]\nmode = "staged"\n'
        )
        settings = {
            "exit_when_done": False,
            "evaluation": {"data": str(folder / "w.npz")},
            "rollout": _STAGES,
            "export": {"every_rounds": 1},
        }
        task = tiny_task(count=2, min_devices=3).model_dump(mode="json")
        args = {"root": str(folder), "port": port, "task": task, "settings": settings, "slow": ""}
        self._args.write_text(json.dumps(args))

    coordinator: subprocess.Popen[bytes]
    """The newest one."""

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        self.coordinator = self._start(
            "coordinator", "-m", "tests.support.coordinator.child", str(self._args)
        )
        return self.coordinator

    def start_device(self, name: str, site: str) -> subprocess.Popen[bytes]:
        words = (str(self.broker), name, site)
        return self._start(name, "-m", "tests.support.console.device_child", *words)

    def start_console(self) -> subprocess.Popen[bytes]:
        """At the same address each time; it listens."""
        listen = ("--listen", f"127.0.0.1:{self._console}")
        made = self._start("console", *_LICHEN, "console", "serve", "-c", str(self._config), *listen)
        end = time.monotonic() + _WAIT_S
        while not self._listens():
            assert made.poll() is None, self.logs()
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)
        return made

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._console)) == 0

    def lichen(self, *words: str) -> str:
        """What a command of the coordinator's machine prints."""
        command = [sys.executable, *_LICHEN, *words, "-c", str(self._config)]
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def logs(self) -> str:
        """The end of what each process wrote, to explain a failure."""
        return "\n".join(f"{one.name}: {one.read_text()[-1500:]}" for one in self._folder.glob("*.log"))

    def stop(self) -> None:
        for one in self._running:
            one.kill()
            one.wait()

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            made = subprocess.Popen([sys.executable, *words], cwd=_ROOT, stdout=log, stderr=log)
        self._running.append(made)
        return made


@contextmanager
def live_fleet(folder: Path, port: int) -> Iterator[LiveFleet]:
    """A fleet of which nothing runs yet; all of it is stopped at the end."""
    fleet = LiveFleet(folder, port)
    try:
        yield fleet
    finally:
        fleet.stop()
