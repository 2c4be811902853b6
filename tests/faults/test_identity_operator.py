"""The operator's side against the real Mosquitto: its folder as written, included, reloaded, looked at."""

import asyncio
import getpass
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from coordinator.admission.operator_decisions import unproven
from coordinator.identity.enrolment import EnrolmentAuthority, PublishedList
from coordinator.storage.location import Location
from lichen.commands.looking import as_onlooker
from lichen.commands.status import look
from protocol.enrolment import EnrolRequest
from protocol.errors import Transient
from protocol.messages import RoundAnnouncement, State, encode
from protocol.topics import Kind, broadcast_topic, coordinator_filters, device_topic
from runtime.settings.load import MqttSettings, TlsSettings
from tests.support.identity.broker import connected, turned_away
from tests.support.identity.desk import FLEET, csr, make_desk, new_key
from tests.support.network.brokers import HOST, BrokerProcess, free_port, require_mosquitto
from tests.support.network.links import quick
from tests.support.services import until

pytestmark = pytest.mark.mosquitto
DATA = "persistence_location"


@contextmanager
def debian(folder: Path, reload_command: list[str] | None = None):
    """Mosquitto with a configuration of its own that includes ours, and a desk that can make it reload."""
    program, port = require_mosquitto(), free_port()
    if reload_command is None:
        reload_command = ["/bin/sh", "-c", f"kill -HUP $(cat {folder}/pid)"]
    with make_desk(folder, broker_port=port, reload_command=reload_command) as desk:
        desk.publish(reload=False)
        conf = folder / "mosquitto.conf"
        conf.write_text(
            f"pid_file {folder}/pid\npersistence true\n{DATA} {folder}/\nuser {getpass.getuser()}\n"
            f"include_dir {desk.places.broker.folder}/conf.d\n"
        )
        broker = BrokerProcess([program, "-v", "-c", str(conf)], port, folder / "log").start()
        try:
            yield desk, broker
        finally:
            broker.stop()


def device(desk: EnrolmentAuthority, folder: Path, name: str) -> MqttSettings:
    """Enrol one, as the service would."""
    key, token = new_key(), desk.invite(name, 60).token
    answer = desk.enrol(EnrolRequest(token=token, device=name, csr=csr(key)))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair = folder / f"{name}.pem"
    pair.write_bytes(str(answer.certificate).encode() + private)
    tls = TlsSettings(ca_file=desk.places.ca, cert_file=pair, key_file=pair)
    return quick(answer.broker_port, host=HOST, tls=tls)


def coordinators(desk: EnrolmentAuthority) -> MqttSettings:
    pair = desk.places.coordinator
    tls = TlsSettings(ca_file=desk.places.ca, cert_file=pair, key_file=pair)
    return quick(desk.places.broker.port, host=HOST, tls=tls)


async def told(desk: EnrolmentAuthority, broker: BrokerProcess) -> None:
    """Publish; the command only sends a signal, and it is waited until the broker acts on it."""
    before = broker.log().count("Reloading config.")
    assert desk.publish().reloaded
    assert desk.book.unproven_since() is None
    assert broker.log().count("Reloading config.") > before


async def test_each_of_two_revocations_within_a_second_counts(tmp_path) -> None:
    with debian(tmp_path) as (desk, broker):
        chosen = {name: device(desk, tmp_path, name) for name in ("a", "b", "c")}
        for settings in chosen.values():
            async with connected(settings, "x", []):
                pass
        for name in ("a", "b"):
            desk.book.revoke(name)
            await told(desk, broker)
        words = await asyncio.gather(*(turned_away(chosen[name]) for name in ("a", "b")))
        assert all(words)
        async with connected(chosen["c"], "x", []) as client:
            assert client.link.connected


async def test_a_device_that_enrols_anew_is_in_and_its_old_certificate_is_out(tmp_path) -> None:
    with debian(tmp_path) as (desk, broker):
        old = device(desk, tmp_path, "a")
        kept = tmp_path / "old.pem"
        kept.write_bytes((tmp_path / "a.pem").read_bytes())
        desk.book.revoke("a")
        await told(desk, broker)
        new = device(desk, tmp_path, "a")
        await told(desk, broker)
        tls = TlsSettings(ca_file=desk.places.ca, cert_file=kept, key_file=kept)
        assert await turned_away(old.model_copy(update={"tls": tls}))
        async with connected(new, "x", []) as client, asyncio.timeout(5):
            await client.link.publish(device_topic(FLEET, "a", Kind.STATE), b"{}")


async def test_who_looks_sees_the_fleet_and_throws_nobody_out(tmp_path) -> None:
    with debian(tmp_path) as (desk, _):
        settings, filters = coordinators(desk), list(coordinator_filters(FLEET))
        async with (
            connected(settings, "coordinator", filters) as coordinator,
            connected(device(desk, tmp_path, "a"), "x", []) as one,
            asyncio.timeout(20),
        ):
            said = encode(RoundAnnouncement(task="t", round=1, rounds=2, phase="collecting"))
            await coordinator.link.publish(broadcast_topic(FLEET, Kind.ROUND), said, retain=True)
            state = encode(State(status="online", device="a"))
            await one.link.publish(device_topic(FLEET, "a", Kind.STATE), state, retain=True)
            view = await look(as_onlooker(settings), FLEET, 0.5)
            assert view.round is not None
            assert [d.status for d in view.devices.values()] == ["online"]
            assert coordinator.link.counters.reconnects == 0
            async with connected(as_onlooker(settings), "x", []) as onlooker:
                for topic in (broadcast_topic(FLEET, Kind.ROUND), device_topic(FLEET, "a", Kind.CMD)):
                    with pytest.raises(Transient):
                        await onlooker.link.publish(topic, b"forged")
                    await onlooker.link.wait_connected()
            assert coordinator.link.connected


async def test_a_reload_that_does_nothing_is_noticed_said_and_tried_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.identity.enrolment.PROVE_S", 0.5)
    silent, works = tmp_path / "silent", f"kill -HUP $(cat {tmp_path}/pid)"
    command = ["/bin/sh", "-c", f"test -e {silent} || {works}"]
    with debian(tmp_path, command) as (desk, _):
        thief = device(desk, tmp_path, "a")
        silent.touch()  # the command ends well, as a touch does whose watcher has failed
        desk.book.revoke("a")
        for _again in range(2):
            with pytest.raises(Transient, match="nothing shows that the broker acts on its files") as found:
                desk.publish()
            assert "accepts a certificate that the newest list revokes" in str(found.value)
        async with connected(thief, "x", []) as client:
            assert client.link.connected, "so it is true"
        wait = unproven(Location.at(desk.places.state_dir))
        assert wait is not None
        assert "may let revoked devices in" in wait.why
        silent.unlink()
        monkeypatch.undo()
        assert desk.publish().reloaded
        assert unproven(Location.at(desk.places.state_dir)) is None
        assert desk.publish() == PublishedList(changed=False, reloaded=False), (
            "once shown, nothing is told again"
        )
        assert await turned_away(thief)


async def test_a_broker_that_is_told_by_hand_is_found_out(tmp_path) -> None:
    with debian(tmp_path, []) as (desk, broker):
        assert desk.publish().reloaded, "it read the files when it started"
        desk.book.revoke("a", unknown=True)
        assert desk.publish() == PublishedList(changed=True, reloaded=False)
        assert desk.publish() == PublishedList(changed=False, reloaded=False)
        assert unproven(Location.at(desk.places.state_dir)) is not None
        os.kill(broker.pid, signal.SIGHUP)
        await until(lambda: desk.publish().reloaded)
        assert unproven(Location.at(desk.places.state_dir)) is None
