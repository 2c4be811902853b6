"""Several tasks behind the real Mosquitto: a link and topics for each, one certificate of a device."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from coordinator.actions import devices
from coordinator.audit.chain import Person
from coordinator.config.tasks import own_certificate
from coordinator.identity import setup
from coordinator.identity.mosquitto import render_acl
from lichen_lab.simulation.processes.embedded_broker import free_port
from protocol.errors import Transient
from protocol.topics import (
    Kind,
    broadcast_topic,
    coordinator_filters,
    device_filters,
    device_topic,
    namespace,
)
from tests.support.identity.broker import Client, SecuredBroker, connected, turned_away
from tests.support.identity.pki import FLEET, Pki
from tests.support.services import until
from tests.support.several_tasks import Fleet, online

pytestmark = pytest.mark.mosquitto
SOUND = namespace(FLEET, "sound")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def secured(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("broker") / "mosquitto", pki, ("sound",))
    broker.process.start()
    yield broker
    broker.process.stop()


def link_of(pki: Pki, secured: SecuredBroker, task: str | None) -> AbstractAsyncContextManager[Client]:
    settings = pki.coordinator(task).mqtt(secured.port)
    space = namespace(FLEET, task)
    return connected(settings, f"coordinator-{space}", [*coordinator_filters(space), f"lichen/v1/{FLEET}/#"])


async def test_each_task_has_a_link_of_its_own_and_one_device_speaks_to_both(
    pki: Pki, secured: SecuredBroker
) -> None:
    filters = [topic for space in (FLEET, SOUND) for topic, _ in device_filters(space, "barn-1")]
    async with (
        link_of(pki, secured, None) as main,
        link_of(pki, secured, "sound") as sound,
        connected(pki.device("barn-1").mqtt(secured.port), "agent", filters) as device,
    ):
        await device.link.publish(device_topic(FLEET, "barn-1", Kind.STATE), b"main")
        await device.link.publish(device_topic(SOUND, "barn-1", Kind.STATE), b"sound")
        await main.until(device_topic(FLEET, "barn-1", Kind.STATE))
        await sound.until(device_topic(SOUND, "barn-1", Kind.STATE))
        for client, space in ((main, FLEET), (sound, SOUND)):
            await client.link.publish(broadcast_topic(space, Kind.OFFER), space.encode())
            await device.until(broadcast_topic(space, Kind.OFFER))
        for client, space in (
            (main, FLEET),
            (sound, SOUND),
        ):  # both are asked for all of the main task's topics
            assert {topic.split("/")[2] for topic in client.topics() if "/d/" in topic} == {space}
        assert main.link.connected, "no link takes over the other's session"


async def test_a_task_that_only_the_device_knows_costs_it_nothing(pki: Pki, secured: SecuredBroker) -> None:
    """Mosquitto ends a connection that publishes what is denied, and with it those of the other tasks."""
    early = namespace(FLEET, "early")
    filters = [topic for topic, _ in device_filters(FLEET, "barn-3")]
    async with (
        link_of(pki, secured, None) as main,
        connected(pki.device("barn-3").mqtt(secured.port), "agent", filters) as device,
    ):
        await device.link.publish(device_topic(early, "barn-3", Kind.STATE), b"early", retain=True)
        await device.link.publish(device_topic(FLEET, "barn-3", Kind.STATE), b"main")
        await main.until(device_topic(FLEET, "barn-3", Kind.STATE))
        assert device.link.counters.reconnects == 0


async def test_the_link_of_one_task_writes_nothing_in_another(pki: Pki, secured: SecuredBroker) -> None:
    filters = [topic for topic, _ in device_filters(FLEET, "barn-2")]
    async with (
        link_of(pki, secured, None) as main,
        link_of(pki, secured, "sound") as sound,
        connected(pki.device("barn-2").mqtt(secured.port), "agent", filters) as device,
    ):
        for topic in (broadcast_topic(FLEET, Kind.OFFER), device_topic(FLEET, "barn-2", Kind.CMD)):
            await sound.link.wait_connected()
            with contextlib.suppress(Transient):
                await sound.link.publish(topic, b"forged")
        await main.link.publish(device_topic(FLEET, "barn-2", Kind.CMD), b"true")
        await device.until(device_topic(FLEET, "barn-2", Kind.CMD))
        assert [m.payload for m in device.heard if not m.retain] == [b"true"]


async def test_a_revoked_device_is_out_of_all_tasks_at_the_broker(pki: Pki, secured: SecuredBroker) -> None:
    shown = pki.device("thief")
    async with (
        connected(shown.mqtt(secured.port), "agent", []) as thief,
        link_of(pki, secured, "sound") as sound,
    ):
        await thief.link.publish(device_topic(SOUND, "thief", Kind.STATE), b"before")
        await sound.until(device_topic(SOUND, "thief", Kind.STATE))
        secured.revoke("thief", shown)
        await until(lambda: "Reloading config" in secured.process.log())
        with contextlib.suppress(Transient):
            await thief.link.publish(device_topic(SOUND, "thief", Kind.METRIC), b"after")
        await asyncio.sleep(0.2)
        assert device_topic(SOUND, "thief", Kind.METRIC) not in sound.topics()
    assert "revoked" in await turned_away(shown.mqtt(secured.port), saying="revoked")


async def test_a_device_is_revoked_and_released_once_for_all_tasks(tmp_path: Path) -> None:
    """The coordinators of all tasks read one identity store: that of the main task."""
    fleet, operator = Fleet(tmp_path), Person("ann", "admin", "test")
    settings = fleet.write("sound", identity={"host": "127.0.0.1", "port": free_port()})
    setup.init(settings, ["127.0.0.1"])
    async with fleet.run():
        await fleet.until(sound="running")
        sound = fleet.coordinator("sound")
        for coordinator in (fleet.main, sound):
            await online(coordinator, "barn-1")
            assert coordinator.access.denial("barn-1") is None

        await asyncio.to_thread(devices.revoke, settings.for_task("sound"), operator, "barn-1", unknown=True)
        for coordinator in (fleet.main, sound):
            await until(partial(coordinator.access.denial, "barn-1"), seconds=20)
            assert "revoked by the operator" in str(coordinator.access.denial("barn-1"))
    assert not (settings.for_task("sound").state_dir / "identity.sqlite3").exists()
    assert not (settings.for_task("sound").state_dir / "authority").exists()


async def test_a_new_task_gets_its_certificate_and_topics_before_it_starts(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    settings = fleet.write("sound", identity={"host": "127.0.0.1", "port": free_port()})
    setup.init(settings, ["127.0.0.1"])
    acl = settings.state_dir / "mosquitto/acl"
    async with fleet.run():
        await fleet.until(sound="running")
        assert own_certificate(settings.state_dir, "sound").is_file()
        fleet.write("sound", "door", identity=settings.identity.model_dump())
        fleet.tasks.reload()
        await fleet.until(sound="running", door="running")
        assert own_certificate(settings.state_dir, "door").is_file()
        assert acl.read_text() == render_acl("test", (), ("door", "sound"))

        fleet.write("door", identity=settings.identity.model_dump())
        fleet.tasks.reload()
        await fleet.until(door="running")
        await until(lambda: acl.read_text() == render_acl("test", (), ("door",)))
