"""Two tasks over mutual TLS: real commands, daemons and Mosquitto; only training is a stand-in."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.status.history import read
from tests.e2e.test_identity_fleet import AGENT, COORDINATOR, TASK, Fleet, _tail, daemon, lichen, until
from tests.support.agent.data import write_toy
from tests.support.network.brokers import HOST

pytestmark = [pytest.mark.mosquitto, pytest.mark.long, pytest.mark.timeout(600)]
CONFIG = ("--config", "coordinator.toml")
SERVE = ("coordinator", "serve", *CONFIG)
ENOUGH = 8
"""``rounds.min_windows`` of the task."""
SOUND = '[[tasks]]\nname = "sound"\ntask = "sound.toml"\n'


class TwoDevices(Fleet):
    """``wrist-1`` and ``wrist-2``, each of which is in both tasks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        config = COORDINATOR.format(port=self.port, broker_port=self.broker_port)
        config = config.replace("exit_when_done = true", "away_grace_s = 600.0")
        self.config = config
        self.write()
        task = TASK.replace("count = 2", "count = 3").replace("deadline_s = 60.0", "deadline_s = 600.0")
        (self.here / "task.toml").write_text(task.replace("min_devices = 1", "min_devices = 2"))
        (self.here / "sound.toml").write_text(TASK.replace('name = "toy"', 'name = "steps"'))
        self.devices = {name: root / name for name in ("wrist-1", "wrist-2")}
        for folder in self.devices.values():
            folder.mkdir()
            (folder / "agent.toml").write_text(AGENT + '[[tasks]]\nname = "sound"\n')
            write_toy(folder, 60)

    def write(self, tables: str = "") -> None:
        (self.here / "coordinator.toml").write_text(self.config + tables)

    def enroll(self) -> None:
        for name, folder in self.devices.items():
            (folder / "invite").write_text(self.invite(name))
            lichen("agent", "enroll", "--config", "agent.toml", "--invite-file", "invite", cwd=folder)

    def stands(self, *words: str) -> dict:
        found = lichen("coordinator", "status", *CONFIG, "--format", "json", *words, cwd=self.here)
        return json.loads(found)

    def until(self, key: str, value: object, *words: str, seconds: float = 120.0) -> dict:
        found: dict = {}

        def is_so() -> bool:
            found.update(self.stands(*words))
            return found[key] == value

        until(is_so, f"{key} is not {value}: {_tail(self.here / 'log')}", seconds)
        return found

    def windows(self) -> list[int]:
        """Of each device, as the coordinator knows."""
        return [one["windows"] or 0 for one in read(self.here / "state")["devices"]]

    def agent(self, name: str) -> dict:
        words = ("agent", "status", "--config", "agent.toml", "--format", "json", "--task", "sound")
        return json.loads(lichen(*words, cwd=self.devices[name]))


@pytest.fixture
def fleet(tmp_path):
    made = TwoDevices(tmp_path)
    made.init()
    made.start_broker()
    yield made
    made.broker.stop()


def test_a_second_task_starts_in_mid_round_survives_a_kill_and_ends(fleet: TwoDevices) -> None:
    log = fleet.here / "log"
    with ExitStack() as stack:
        coordinator = stack.enter_context(daemon(*SERVE, cwd=fleet.here, log=log))
        fleet.enroll()
        lichen("round", "hold", *CONFIG, cwd=fleet.here)
        agents = {
            name: stack.enter_context(
                daemon("agent", "run", "--config", "agent.toml", cwd=folder, log=folder / "log")
            )
            for name, folder in fleet.devices.items()
        }
        fleet.until("devices_online", 2)
        until(lambda: min(fleet.windows()) >= ENOUGH, _tail(log))
        agents["wrist-2"].send_signal(signal.SIGSTOP)  # it delivers nothing, so the round stays open
        lichen("round", "resume", *CONFIG, cwd=fleet.here)
        fleet.until("phase", "collecting")

        fleet.write(SOUND)  # another task begins meanwhile
        coordinator.send_signal(signal.SIGHUP)
        until(lambda: "task_running" in log.read_text(), _tail(log))
        fleet.until("version", 2, "--task", "sound")
        assert fleet.stands()["phase"] == "collecting"

        coordinator.kill()
        coordinator.wait(10)
        coordinator = stack.enter_context(daemon(*SERVE, cwd=fleet.here, log=log))
        until(lambda: log.read_text().count("task_running") == 2, _tail(log))
        sound = fleet.until("phase", "done", "--task", "sound")
        assert (sound["version"], sound["fleet"]) == (2, "workshop~sound")
        main = fleet.stands()
        assert (main["phase"], main["round"], main["attempt"]) == ("collecting", 1, 1)
        assert [(one["name"], one["state"], one["phase"]) for one in main["tasks"]] == [
            ("sound", "running", "done")
        ]

        agents["wrist-2"].send_signal(signal.SIGCONT)
        fleet.until("phase", "done")
        fleet.until("devices_online", 2, "--task", "sound")

        lichen("device", "revoke", "wrist-2", *CONFIG, cwd=fleet.here)
        for words in ((), ("--task", "sound")):
            assert fleet.until("devices_revoked", 1, *words)["revoked"] == ["wrist-2"]
            fleet.until("devices_online", 1, *words)

        assert fleet.agent("wrist-1")["task"] == "steps"
        fleet.write()
        coordinator.send_signal(signal.SIGHUP)
        until(lambda: "task_ended" in log.read_text(), _tail(log))
        until(lambda: fleet.agent("wrist-1")["task"] is None, _tail(fleet.devices["wrist-1"] / "log"))
        assert fleet.stands()["tasks"] == []
    said = fleet.broker.log()
    assert "as @coordinator~sound (p5" in said
    assert said.count("as @coordinator (p5") >= 2
    assert HOST in said
