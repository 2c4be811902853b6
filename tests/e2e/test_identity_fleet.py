"""From an empty folder to a round over mutual TLS: real commands, processes and Mosquitto.

``lichen coordinator init``, Mosquitto on the folder it wrote, ``lichen coordinator serve``, ``lichen device
invite``, ``lichen agent enroll`` and ``lichen agent run``. Only the training on the device is a stand-in.
"""

import contextlib
import getpass
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_agent.config.agent import read
from tests.support.agent.data import write_toy
from tests.support.network.brokers import HOST, BrokerProcess, free_port, require_mosquitto

pytestmark = pytest.mark.mosquitto
ROOT = Path(__file__).parents[2]
LICHEN = [sys.executable, "-P", "-c", "import sys; from lichen.cli import main; sys.exit(main())"]
TASK = """
name = "toy"
method = "qqr"
labels = ["slow", "middle", "fast"]
[[modalities]]
name = "acc"
channels = 3
rate_hz = 50
low = -40
high = 40
[[modalities]]
name = "gyr"
channels = 2
rate_hz = 25
[network]
feature_dim = 16
hidden_dim = 16
[rounds]
count = 2
min_windows = 8
min_devices = 1
deadline_s = 60.0
"""
COORDINATOR = """
fleet = "workshop"
state_dir = "state"
task = "task.toml"
offer_every_s = 0.5
spread_s = 0.0
exit_when_done = true
exit_linger_s = 1.0
[identity]
host = "127.0.0.1"
port = {port}
broker_port = {broker_port}
reload_command = ["sh", "reload.sh"]
[export]
enabled = false
[mqtt]
backoff_min_s = 0.05
backoff_max_s = 0.3
"""
AGENT = """
state_dir = "state"
cache_dir = "cache"
state_every_s = 0.2
[mqtt]
backoff_min_s = 0.05
backoff_max_s = 0.3
[outbox]
resend_s = 0.5
[learn]
module = "tests.support.agent.worker"
[infer]
enabled = false
[[source]]
kind = "replay"
file = "toy.npz"
speed = 30
loop = true
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def lichen(*words: str, cwd: Path, code: int = 0) -> str:
    """One command; its standard output."""
    done = subprocess.run(
        [*LICHEN, *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout if code == 0 else done.stdout + done.stderr


@contextlib.contextmanager
def daemon(*words: str, cwd: Path, log: Path):
    """A process that runs until the end of the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*LICHEN, *words], cwd=cwd, env=environment(), stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def until(true, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Fleet:
    """Folders, configuration, broker."""

    def __init__(self, root: Path) -> None:
        self.here = root / "coordinator"
        self.device = root / "device"
        for folder in (self.here, self.device):
            folder.mkdir()
        self.port, self.broker_port = free_port(), free_port()
        config = COORDINATOR.format(port=self.port, broker_port=self.broker_port)
        (self.here / "coordinator.toml").write_text(config)
        (self.here / "task.toml").write_text(TASK)
        (self.device / "agent.toml").write_text(AGENT)
        write_toy(self.device, 60)

    def init(self) -> None:
        words = ["coordinator", "init", "--config", "coordinator.toml", "--host", HOST, "--format", "json"]
        made = json.loads(lichen(*words, cwd=self.here))
        mqtt = made["mqtt"]
        lines = ["[mqtt]", f"host = {json.dumps(mqtt['host'])}", f"port = {mqtt['port']}", "[mqtt.tls]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in mqtt["tls"].items()]
        folder = self.here / "coordinator.d"
        folder.mkdir()
        (folder / "50-mqtt.toml").write_text("\n".join(lines))
        self.broker = self._broker(Path(made["broker_dir"]))

    def _broker(self, files: Path) -> BrokerProcess:
        """Mosquitto with a configuration of its own that includes what was written."""
        conf = self.here / "broker.conf"
        conf.write_text(
            f"user {getpass.getuser()}\npersistence_location {files}/data/\ninclude_dir {files}/conf.d\n"
        )
        program = require_mosquitto()
        broker = BrokerProcess([program, "-v", "-c", str(conf)], self.broker_port, self.here / "broker.log")
        (self.here / "reload.sh").write_text(f'kill -HUP "$(cat {self.here}/broker.pid)"\n')
        return broker

    def start_broker(self) -> None:
        self.broker.start()
        (self.here / "broker.pid").write_text(str(self.broker.pid))

    def invite(self, *words: str) -> str:
        found = lichen(
            "device", "invite", *words, "--config", "coordinator.toml", "--format", "json", cwd=self.here
        )
        return str(json.loads(found)["invite"])

    def status(self) -> dict:
        return json.loads((self.device / "cache" / "status.json").read_text())


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    made.init()
    made.start_broker()
    yield made
    made.broker.stop()


@pytest.mark.long
def test_from_an_invite_to_a_round_over_mutual_tls(fleet):
    serve = ["coordinator", "serve", "--config", "coordinator.toml"]
    log = fleet.here / "log"
    with daemon(*serve, cwd=fleet.here, log=log) as coordinator:
        enroll = ["agent", "enroll", "--config", "agent.toml", "--invite-file", "invite", "--format", "json"]
        (fleet.device / "invite").write_text(fleet.invite("wrist-1"))
        done = json.loads(lichen(*enroll, cwd=fleet.device))
        assert done["status"] == "enrolled"
        assert json.loads(lichen(*enroll, cwd=fleet.device))["status"] == "already"
        assert read(fleet.device / "agent.toml").mqtt.port == fleet.broker_port
        with daemon(
            "agent", "run", "--config", "agent.toml", cwd=fleet.device, log=fleet.device / "log"
        ) as agent:
            until(lambda: coordinator.poll() is not None, f"the rounds did not end: {_tail(log)}", 90)
            assert coordinator.returncode == 0, _tail(log)
            assert agent.poll() is None
            until(lambda: fleet.status()["outbox"]["accepted"] >= 2, "no receipts")
            assert "certificate is valid until" in fleet.status()["certificate"]
    said = fleet.broker.log()
    assert "as wrist-1 (p5" in said, "the certificate's name is the client's"
    assert "as @coordinator (p5" in said
    listed = lichen("device", "ls", "--config", "coordinator.toml", "--format", "json", cwd=fleet.here)
    assert [(d["device"], d["status"]) for d in json.loads(listed)["devices"]] == [("wrist-1", "active")]


@pytest.mark.long
def test_waiting_for_approval_then_renewed_then_thrown_out_again(fleet):
    """The coordinator serves throughout; the device is let in, and out, by the operator's commands alone."""
    config = (fleet.here / "coordinator.toml").read_text()
    config = config.replace("exit_when_done = true", "exit_when_done = false")
    (fleet.here / "coordinator.toml").write_text(config)
    with daemon(
        "coordinator", "serve", "--config", "coordinator.toml", cwd=fleet.here, log=fleet.here / "log"
    ):
        word = fleet.invite()
        once = ["agent", "enroll", word, "--config", "agent.toml", "--device", "wrist-2", "--wait"]
        words = lichen(*once, "5", cwd=fleet.device, code=75)
        assert "lichen device approve wrist-2" in words
        lichen("device", "approve", "wrist-2", "--config", "coordinator.toml", cwd=fleet.here)
        lichen(*once, "30", cwd=fleet.device)
        log, before = fleet.device / "log", _aged(fleet)
        with daemon("agent", "run", "--config", "agent.toml", cwd=fleet.device, log=log):
            until((fleet.device / "cache" / "status.json").exists, _tail(log))
            until(lambda: "connected to" in fleet.status()["link"], _tail(log))
            _renewed(fleet, before, log)
            lichen("device", "revoke", "wrist-2", "--config", "coordinator.toml", cwd=fleet.here)
            fleet.broker.restart()  # at the latest when the connection ends
            (fleet.here / "broker.pid").write_text(str(fleet.broker.pid))
            until(lambda: "connected to" not in fleet.status()["link"], _tail(log))
            until(
                lambda: "revoked" in fleet.status()["link"] or "closed" in fleet.status()["link"], _tail(log)
            )
        said = fleet.broker.log()
        assert "Reloading config" in said, "the reload command ran"
        assert "certificate revoked" in said or "alert certificate" in said or "verify failed" in said


def _record(fleet: Fleet) -> Path:
    return fleet.device / "state" / "identity" / "identity.json"


def _aged(fleet: Fleet) -> str:
    """As if eighty days had passed since the certificate was issued; returns its serial number."""
    found = json.loads(_record(fleet).read_text())
    found["issued_at"] -= 80 * 86400
    found["not_after"] -= 80 * 86400
    _record(fleet).write_text(json.dumps(found))
    return str(found["serial"])


def _renewed(fleet: Fleet, before: str, log: Path) -> None:
    """The agent gets a new certificate, and connects with it at once."""
    until(lambda: json.loads(_record(fleet).read_text())["serial"] != before, f"not renewed: {_tail(log)}")
    until(lambda: fleet.status()["reconnects"] >= 1, f"not connected anew: {_tail(log)}")
    until(lambda: "connected to" in fleet.status()["link"], _tail(log))
    assert "certificate_renewed" in log.read_text()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
