"""Secure rounds in a fleet with identities: enrolled devices sign their keys, over mutual TLS."""

import contextlib
import json

import pytest

from coordinator.status.history import read
from tests.e2e import test_identity_fleet as identity
from tests.support.agent.data import write_toy

pytestmark = [pytest.mark.long, pytest.mark.mosquitto]
SECURE = "\n[secure_aggregation]\nmin_devices = 3\nbound = 64.0\n"
NAMES = ("wrist-1", "wrist-2", "wrist-3")


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(
        identity, "TASK", identity.TASK.replace("min_devices = 1", "min_devices = 3") + SECURE
    )
    made = identity.Fleet(tmp_path)
    made.init()
    made.start_broker()
    yield made
    made.broker.stop()


def test_enrolled_devices_verify_each_others_keys_and_all_rounds_end(fleet):
    serve = ["coordinator", "serve", "--config", "coordinator.toml"]
    log = fleet.here / "log"
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(identity.daemon(*serve, cwd=fleet.here, log=log))
        for name in NAMES:
            folder = fleet.device.parent / name
            folder.mkdir()
            (folder / "agent.toml").write_text(identity.AGENT)
            write_toy(folder, 60)
            (folder / "invite").write_text(fleet.invite(name))
            identity.lichen(
                "agent", "enroll", "--config", "agent.toml", "--invite-file", "invite", cwd=folder
            )
            run = ["agent", "run", "--config", "agent.toml"]
            stack.enter_context(identity.daemon(*run, cwd=folder, log=folder / "log"))
        identity.until(lambda: coordinator.poll() is not None, "the rounds did not end", 150)
        said = log.read_text(errors="replace")
        assert coordinator.returncode == 0, said[-3000:]
        status = fleet.device.parent / NAMES[0] / "cache" / "status.json"

        def secure_round():
            return json.loads(status.read_text()).get("secure_round", {})

        # the device writes its status some time after the coordinator has ended
        identity.until(lambda: secure_round().get("neighbours") == 2, "no secure round in the status", 60)
        assert secure_round()["refused"] == ""
    found = read(fleet.here / "state")
    assert [version["devices"] for version in found["versions"]] == [[], [*NAMES], [*NAMES]]
    explain = ["round", "explain", "--config", "coordinator.toml", "--format", "json"]
    told = json.loads(identity.lichen(*explain, cwd=fleet.here))
    assert told["secure"] == (
        "attempt 1, stage done: 3 devices with keys, 3 with shares, 3 told to mask, 3 in the sum, "
        "3 have answered"
    )
