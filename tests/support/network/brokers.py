"""Real brokers for tests: each a process on a free port of 127.0.0.1, with kill() and restart()."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lichen_lab.simulation.processes.embedded_broker import free_port

HOST = "127.0.0.1"
START_S = 15.0


class BrokerProcess:
    """A broker; ``port`` stays the same over restarts."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        self.host = HOST
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "BrokerProcess":
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self._command[0]} did not start: {self._log.read_text(errors='replace')}"
                )
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """SIGKILL: no DISCONNECT, nothing saved."""
        self._end("kill")

    def stop(self) -> None:
        """SIGTERM, in order."""
        self._end("terminate")

    def restart(self) -> "BrokerProcess":
        self.stop()
        return self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _end(self, how: str) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        getattr(process, how)()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            sock.settimeout(0.5)
            return sock.connect_ex((HOST, self.port)) == 0


def embedded(folder: Path, *, v3: bool = False) -> BrokerProcess:
    """The embedded broker (iotcore), not started; ``port`` speaks MQTT 5, or 3.1.1 with ``v3``."""
    port, other = free_port(), free_port()
    ports = ["--port", str(other), "--port-v3", str(port)] if v3 else ["--port", str(port)]
    command = [sys.executable, "-P", "-m", "lichen_lab.simulation.processes.embedded_broker", *ports]
    return BrokerProcess(command, port, folder / f"broker-{port}.log")


def mosquitto_path() -> str | None:
    return shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def require_mosquitto() -> str:
    """The path of mosquitto; without it the test is skipped."""
    path = mosquitto_path()
    if path is None:
        pytest.skip("SKIPPED LOUDLY: mosquitto is not installed (apt-get install mosquitto)")
    return path


def mosquitto_process(
    folder: Path, extra: str = "", *, listener: str | None = None, anonymous: bool = True
) -> BrokerProcess:
    """Mosquitto, not started, with persistence in ``folder``; ``extra`` is appended to its configuration."""
    path = require_mosquitto()
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"mosquitto-{port}.conf"
    config.write_text(
        f"listener {port} {HOST}\n{listener or ''}\n"
        f"allow_anonymous {'true' if anonymous else 'false'}\n"
        f"persistence true\npersistence_location {folder}/\nautosave_interval 1\n"
        "max_queued_messages 0\nmax_queued_bytes 67108864\n"
        # Debian's service changes user; here it runs as the user of the tests.
        f"user {_user()}\n{extra}\n"
    )
    return BrokerProcess([path, "-c", str(config)], port, folder / f"mosquitto-{port}.log")


def _user() -> str:
    import getpass  # noqa: PLC0415 - needed only here

    return getpass.getuser()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """The embedded broker, MQTT 5."""
    process = embedded(tmp_path).start()
    yield process
    process.stop()


@pytest.fixture
def broker_v3(tmp_path: Path) -> Iterator[BrokerProcess]:
    """The embedded broker, MQTT 3.1.1."""
    process = embedded(tmp_path, v3=True).start()
    yield process
    process.stop()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Mosquitto with persistence; the test is skipped, loudly, if it is not installed."""
    process = mosquitto_process(tmp_path / "mosquitto").start()
    yield process
    process.stop()
