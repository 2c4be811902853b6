"""Devices that are waited for: who is not heard is named with its end, who only seems online with its age."""

import json
import re

from typer.testing import CliRunner

from coordinator.cli import status
from coordinator.cli.main import app as coordinator_app
from coordinator.identity.authority import Authority
from coordinator.identity.store import IdentityStore
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.rounds.progress import FleetStatus
from coordinator.status.waits import waits as coordinator_waits
from protocol.errors import Reason, Refused
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import settings_for, tiny_task
from tests.unit.coordinator.status.test_waits import NOW, picture

STRICT = {"refusals": 1, "first_s": 600.0}


async def test_a_quarantined_and_a_revoked_device_are_named_from_the_folder_and_by_the_daemon(
    tmp_path, monkeypatch
):
    settings = settings_for(tmp_path, 1)
    monkeypatch.setattr(status, "read_settings", lambda _file, _task: settings)
    async with bench(tmp_path, tiny_task(min_devices=4), quarantine=STRICT) as made:
        await made.online("a", "b", "c")
        await made.phase("waiting_for_devices")
        made.app.quarantine.refused("a", Refused(Reason.MALFORMED, "bits"))
        made.app.storage.ledger.save()
        Authority.create(settings.state_dir / "authority", settings.fleet, ["localhost"])
        with IdentityStore(settings.state_dir) as book:
            book.revoke("b", unknown=True)
        said = made.app.driver.why()
        assert "a (quarantined: for another 600 s" in said

        def told(*options):
            return CliRunner().invoke(coordinator_app, ["status", "-c", "x.toml", *options]).stdout

        words = told("--why")
        assert "1 is: c; not a (quarantined: for another " in words
        assert "b (revoked: by the operator" in words
        found = json.loads(told("--format", "json"))
        (held,) = [wait for wait in found["waits"] if wait["what"] == "quarantine of a"]
        assert 0 < held["left_s"] <= 600
        assert (found["quarantined"], found["revoked"], found["devices_online"]) == (["a"], ["b"], 2)
        with IdentityStore(settings.state_dir) as book:
            book.approve("a", unknown=True)
        assert "quarantine" not in told("--why")


async def test_a_missing_device_that_is_in_quarantine_is_said_to_be_and_others_when_they_were_heard(tmp_path):
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine=STRICT) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        assert "waiting for a, b (" in made.app.driver.why()
        made.app.roster._wall = lambda: made.app.clock.wall() + 723
        assert re.search(
            r"waiting for a \(online, last heard 12 min [34] s ago\), b \(online, last", made.app.driver.why()
        )
        made.app.quarantine.refused("a", Refused(Reason.MALFORMED, "bits"))
        assert "waiting for a (quarantined: for another 600 s" in made.app.driver.why()


def test_the_wait_for_a_device_that_only_seems_online_says_when_it_was_heard():
    state = RoundState(
        phase=RoundPhase.COLLECTING, round=3, selected=("a", "b"), since=NOW - 20, until=NOW + 80
    )
    heard = {"a": "last heard 12 min 3 s ago", "b": "last heard 2 h 0 min ago"}
    seen = FleetStatus(able=frozenset({"a"}), lacks={"a": "", "b": "offline"}, known=2, heard=heard)
    words = [wait.why for wait in coordinator_waits(picture(state, outlook=seen))]
    assert "(online, last heard 12 min 3 s ago)" in words[1]
    assert words[2] == "offline, last heard 2 h 0 min ago"


def test_a_device_that_lacks_much_is_named_all_the_same():
    """Its own words may be as long as a message lets them be."""
    lacks = {"proto": "waits for a device that trains", "stranger": f"refuses the task: {'x' * 300}"}
    state = RoundState(phase=RoundPhase.WAITING, round=1, attempt=1, since=NOW)
    (wait,) = coordinator_waits(picture(state, outlook=FleetStatus(lacks=lacks, known=2)))
    assert "not proto (waits for a device that trains), stranger" in wait.why
    assert "more" not in wait.why
