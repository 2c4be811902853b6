"""A device acts only as itself, on its own topics: tried against the real Mosquitto.

Mosquitto 2.0 answers a SUBSCRIBE to foreign topics with success and filters each message; a PUBLISH that is
denied is answered so (MQTT 5) and ends the connection in 2.0.11. So every test that says "nothing came" sends
a marker afterwards on a topic that is allowed, and waits for it: what did not come before it never comes.
"""

import asyncio
import contextlib
import dataclasses

import pytest

from coordinator.identity.authority import PERSON_PREFIX
from protocol.enrolment import COORDINATOR_NAME
from protocol.errors import Transient
from protocol.topics import Kind, broadcast_topic, coordinator_filters, device_filters, device_topic
from runtime.mqtt.link import Will
from runtime.settings.load import TlsSettings
from tests.support.identity.broker import Client, SecuredBroker, connected, turned_away
from tests.support.identity.pki import FLEET, HOST, Pki
from tests.support.network.links import quick
from tests.support.services import until

pytestmark = pytest.mark.mosquitto
GOOD, EVIL = "good", "evil"
WILD = ["#", f"lichen/v1/{FLEET}/#", f"lichen/v1/{FLEET}/d/+/down/#", f"lichen/v1/{FLEET}/d/+/up/#"]
PROTOCOLS = pytest.mark.parametrize("protocol", ["5", "3.1.1"])


def up(device: str, kind: Kind = Kind.STATE) -> str:
    return device_topic(FLEET, device, kind)


def down(device: str) -> str:
    return device_topic(FLEET, device, Kind.CMD)


def mine(device: str) -> list[str]:
    return [topic for topic, _ in device_filters(FLEET, device)]


async def forge(evil: Client, topic: str, *, retain: bool = False) -> None:
    """Publish what is not allowed, on a fresh connection where the broker has cut the last one."""
    async with asyncio.timeout(5):
        await evil.link.wait_connected()
        with contextlib.suppress(
            Transient
        ):  # "not authorized", or cut off, or (3.1.1) acknowledged and dropped
            await evil.link.publish(topic, b"forged", retain=retain)


async def truth(client: Client, topic: str, payload: bytes = b"true") -> None:
    """Publish what is allowed, until it is taken."""
    async with asyncio.timeout(5):
        while True:
            await client.link.wait_connected()
            with contextlib.suppress(Transient):
                return await client.link.publish(topic, payload)
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def secured(pki, tmp_path_factory):
    broker = SecuredBroker(tmp_path_factory.mktemp("broker") / "mosquitto", pki)
    broker.process.start()
    yield broker
    broker.process.stop()


@pytest.fixture
async def coordinator(pki, secured):
    settings = pki.coordinator().mqtt(secured.port)
    async with connected(settings, "coordinator", list(coordinator_filters(FLEET))) as client:
        yield client
        for topic in {m.topic for m in client.heard if m.retain}:  # the next test finds nothing of this one
            with contextlib.suppress(Transient):
                await client.link.publish(topic, b"", retain=True)


def settings_of(pki, secured, name, **options):
    return pki.device(name).mqtt(secured.port, **options)


@PROTOCOLS
async def test_a_good_device_is_heard_and_hears(pki, secured, coordinator, protocol):
    settings = settings_of(pki, secured, GOOD, protocol=protocol)
    async with connected(settings, "agent-test-good", [*mine(GOOD), f"lichen/v1/{FLEET}/b/#"]) as good:
        for kind in (Kind.STATE, Kind.UPDATE, Kind.METRIC, Kind.FETCH):
            await good.link.publish(up(GOOD, kind), b"hello")
            await coordinator.until(up(GOOD, kind))
        chunk = device_topic(FLEET, GOOD, Kind.UP_BLOB, "0" * 64, 3)
        await good.link.publish(chunk, b"part")
        await coordinator.until(chunk)
        broadcasts = [broadcast_topic(FLEET, k) for k in (Kind.TASK, Kind.FLEET_MODEL, Kind.OFFER)]
        for topic in (down(GOOD), *broadcasts):
            await coordinator.link.publish(topic, b"do")
            await good.until(topic)
        await good.link.publish(f"lichen/v1/{FLEET}/d/{GOOD}/ping", b"")


@PROTOCOLS
async def test_a_persons_certificate_reads_and_writes_nothing(pki, secured, coordinator, protocol, tmp_path):
    """It is for the console; ``+`` in the common name fits no pattern of the access list."""
    made = pki.authority.issue_person("ann", 30.0)
    file, name, offer = tmp_path / "ann.pem", f"{PERSON_PREFIX}ann", broadcast_topic(FLEET, Kind.OFFER)
    file.write_bytes(made.both_pem)
    shown = dataclasses.replace(pki.device(GOOD), pair=file).mqtt(secured.port, protocol=protocol)
    settings = settings_of(pki, secured, GOOD, protocol=protocol)
    async with (
        connected(settings, "agent-test-good", [*mine(GOOD), f"lichen/v1/{FLEET}/b/#"]) as good,
        connected(shown, name, [*WILD, f"lichen/v1/{FLEET}/b/#"]) as person,
    ):
        for topic in (f"lichen/v1/{FLEET}/d/person/up/state", up(GOOD), down(GOOD), offer):
            await forge(person, topic)
        await truth(good, up(GOOD))
        await coordinator.until(up(GOOD))
        for _ in range(2):
            await coordinator.link.publish(offer, b"do")
        await good.until(offer, 2)
        assert [m.payload for m in coordinator.heard] == [b"true"]
        assert not [m for m in good.heard if m.payload == b"forged"]
        assert not person.heard


@PROTOCOLS
@pytest.mark.parametrize("retain", [False, True], ids=["live", "retained"])
async def test_nobody_publishes_as_another(pki, secured, coordinator, protocol, retain):
    forged = [
        up(GOOD),
        up(GOOD, Kind.UPDATE),
        down(GOOD),
        f"lichen/v1/{FLEET}/d/{GOOD}/ping",
        broadcast_topic(FLEET, Kind.TASK),
        broadcast_topic(FLEET, Kind.ROUND),
        broadcast_topic(FLEET, Kind.FLEET_MODEL),
        f"lichen/v1/{FLEET}/d/{COORDINATOR_NAME}/up/state",
        f"lichen/v1/other/d/{EVIL}/up/state",
        f"lichen/v1/{FLEET}/d/{EVIL}/down/cmd",
        broadcast_topic(FLEET, Kind.OFFER),
        "anything",
    ]
    everything = [f"lichen/v1/{FLEET}/b/#", *mine(GOOD)]
    async with (
        connected(settings_of(pki, secured, GOOD), "a", everything) as good,
        connected(settings_of(pki, secured, EVIL, protocol=protocol), "b", []) as evil,
    ):
        for topic in forged:
            await forge(evil, topic, retain=retain)
        await truth(evil, up(EVIL))
        await coordinator.until(up(EVIL))
        await coordinator.link.publish(down(GOOD), b"marker")
        await good.until(down(GOOD))
        assert b"forged" not in {m.payload for m in (*coordinator.heard, *good.heard)}


@PROTOCOLS
async def test_nobody_reads_anothers_downlink_or_uplink(pki, secured, coordinator, protocol):
    await coordinator.link.publish(down(GOOD), b"secret", retain=True)
    filters = [*WILD, down(GOOD), "$SYS/#"]
    if protocol == "5":  # our client refuses a shared subscription over MQTT 3.1.1, which has none
        filters.append(f"$share/x/lichen/v1/{FLEET}/d/{GOOD}/down/#")
    async with (
        connected(settings_of(pki, secured, GOOD), "a", mine(GOOD)) as good,
        connected(settings_of(pki, secured, EVIL, protocol=protocol), "b", filters) as evil,
    ):
        await good.until(down(GOOD))
        await good.link.publish(up(GOOD), b"secret")
        await coordinator.until(up(GOOD))
        await coordinator.link.publish(down(GOOD), b"secret")
        await good.until(down(GOOD), 2)
        await coordinator.link.publish(down(EVIL), b"marker")
        await evil.until(down(EVIL))
        assert {m.payload for m in evil.heard} == {b"marker"}
    await coordinator.link.publish(down(GOOD), b"", retain=True)


async def test_a_session_that_waited_offline_gets_nothing_of_anothers(pki, secured, coordinator):
    shown = settings_of(pki, secured, EVIL)
    async with connected(shown, "b", [down(GOOD), *WILD]):
        pass
    await coordinator.link.publish(down(GOOD), b"secret")
    await coordinator.link.publish(down(EVIL), b"marker")
    async with connected(shown, "b", [down(GOOD), *WILD]) as evil:
        await evil.until(down(EVIL))
        assert {m.payload for m in evil.heard} == {b"marker"}


@pytest.mark.parametrize("stolen", ["agent-test-good", GOOD, COORDINATOR_NAME, "coordinator"])
@PROTOCOLS
async def test_anothers_client_id_takes_over_nothing(pki, secured, coordinator, stolen, protocol):
    """Neither the connection that is open nor the messages that wait for it."""
    shown = settings_of(pki, secured, GOOD)
    async with connected(shown, "agent-test-good", mine(GOOD)) as good:
        evil_settings = settings_of(pki, secured, EVIL, protocol=protocol)
        async with connected(evil_settings, stolen, [*WILD, *mine(GOOD)]) as evil:
            await coordinator.link.publish(down(GOOD), b"secret")
            await good.until(down(GOOD))
            await coordinator.link.publish(down(EVIL), b"marker")
            await evil.until(down(EVIL))
            assert {m.payload for m in evil.heard} == {b"marker"}
        assert good.link.counters.reconnects == coordinator.link.counters.reconnects == 0
    await coordinator.link.publish(down(GOOD), b"waits")
    async with connected(settings_of(pki, secured, EVIL), stolen, []) as evil:
        await coordinator.link.publish(down(EVIL), b"marker")
    async with connected(shown, "agent-test-good", mine(GOOD)) as good:
        await good.until(down(GOOD))
        assert good.heard[0].payload == b"waits"
        assert b"waits" not in {m.payload for m in evil.heard}


@pytest.mark.parametrize("name", [GOOD, COORDINATOR_NAME])
async def test_a_user_name_in_the_packet_counts_for_nothing(pki, secured, coordinator, tmp_path, name):
    (tmp_path / "password").write_text("x")
    settings = settings_of(
        pki, secured, EVIL, username=name, password_file=tmp_path / "password", protocol="3.1.1"
    )
    async with connected(settings, "b", []) as evil:
        await forge(evil, up(GOOD))
        await forge(evil, broadcast_topic(FLEET, Kind.TASK))
        await truth(evil, up(EVIL))
        await coordinator.until(up(EVIL))
        assert b"forged" not in {m.payload for m in coordinator.heard}


async def test_a_will_on_anothers_topic_is_not_published(pki, secured, coordinator):
    async with connected(settings_of(pki, secured, EVIL), "b", [], will=Will(up(EVIL), b"own will")) as own:
        own.link._session._connection._cut()
        await coordinator.until(up(EVIL))
    why = await _try_will(settings_of(pki, secured, EVIL))
    async with connected(settings_of(pki, secured, EVIL), "b", []) as evil:
        await evil.link.publish(up(EVIL), b"marker")
        await until(lambda: coordinator.heard[-1].payload == b"marker")
    assert b"forged will" not in {m.payload for m in coordinator.heard}, why


async def _try_will(settings) -> str:
    """Vanish with a will for another's topic, if the broker takes it at all."""
    client = connected(settings, "b", [], will=Will(up(GOOD), b"forged will"))
    try:
        async with asyncio.timeout(2):
            evil = await client.__aenter__()
    except TimeoutError:
        return "not let in"
    evil.link._session._connection._cut()
    await client.__aexit__(None, None, None)
    return "let in"


@pytest.mark.parametrize("name", ["+", "#", "x/y", "good/down"])
async def test_a_name_that_is_a_pattern_opens_nothing(pki, secured, coordinator, name):
    """No such name is ever signed by the service; were one, the broker would not take it for a pattern."""
    async with connected(settings_of(pki, secured, "witness"), "w", mine("witness")) as witness:
        with contextlib.suppress(Transient, TimeoutError):
            async with (
                asyncio.timeout(5),
                connected(settings_of(pki, secured, name), "b", WILD) as evil,
            ):
                await coordinator.link.publish(down(GOOD), b"secret")
                await forge(evil, up(GOOD))
                await coordinator.link.publish(down("witness"), b"marker")
                await witness.until(down("witness"))
                assert not evil.heard
        await witness.link.publish(up("witness"), b"true")
        await coordinator.until(up("witness"))
        assert b"forged" not in {m.payload for m in coordinator.heard}


@PROTOCOLS
async def test_who_is_not_let_in_at_all(pki, secured, tmp_path, protocol):
    (tmp_path / "other").mkdir()
    foreign = Pki(tmp_path / "other")
    own_ca = TlsSettings(ca_file=pki.ca)
    forged = dataclasses.replace(foreign.device(GOOD), ca=pki.ca)
    self_made = dataclasses.replace(foreign.coordinator(), ca=pki.ca)
    tries = {
        "plain TCP": quick(secured.port, protocol=protocol),
        "TLS without a certificate": quick(secured.port, tls=own_ca, protocol=protocol),
        "another authority's certificate": forged.mqtt(secured.port, protocol=protocol),
        "another authority's coordinator": self_made.mqtt(secured.port, protocol=protocol),
        "the broker's certificate as a client": _of_server(pki, secured, protocol),
        "an expired certificate": _expired(pki, secured, protocol),
    }
    before = secured.process.log().count("New client connected")
    for what, settings in tries.items():
        assert await turned_away(settings, "agent-test-good"), what
    assert secured.process.log().count("New client connected") == before


def _expired(pki, secured, protocol):
    shown = pki.device(GOOD, days=-0.5)  # it is back-dated by a day
    return shown.mqtt(secured.port, protocol=protocol)


def _of_server(pki, secured, protocol):
    pair = pki.server([HOST, GOOD])
    return quick(
        secured.port, protocol=protocol, tls=TlsSettings(ca_file=pki.ca, cert_file=pair, key_file=pair)
    )


async def test_an_expired_certificate_is_said_in_words(pki, secured):
    assert await turned_away(_expired(pki, secured, "5"), saying="refuses our certificate: it has expired")


@PROTOCOLS
async def test_a_revoked_device_is_out_at_once_and_the_others_stay(pki, secured, coordinator, protocol):
    name = f"lost-{protocol[0]}"
    shown = pki.device(name)
    settings = shown.mqtt(secured.port, protocol=protocol)
    async with (
        connected(settings_of(pki, secured, GOOD), "a", mine(GOOD)) as good,
        connected(settings, "b", [*mine(name), *WILD]) as lost,
    ):
        await lost.link.publish(up(name), b"before")
        await coordinator.until(up(name))
        reloads = secured.process.log().count("Reloading config")
        secured.revoke(name, shown)
        await until(lambda: secured.process.log().count("Reloading config") > reloads)
        with contextlib.suppress(Transient):  # 5: not authorized, or cut off; 3.1.1: dropped
            await lost.link.publish(up(name), b"after")
        await coordinator.link.publish(down(name), b"secret")
        await coordinator.link.publish(broadcast_topic(FLEET, Kind.TASK), b"secret")
        await coordinator.link.publish(down(GOOD), b"marker")
        await good.until(down(GOOD))
        await good.link.publish(up(GOOD), b"marker")
        await coordinator.until(up(GOOD))
        assert b"after" not in {m.payload for m in coordinator.heard}
        assert b"secret" not in {m.payload for m in lost.heard}
        assert good.link.counters.reconnects == 0
    words = await turned_away(settings, "b")
    assert "revoked" in words or "closed" in words or "lost" in words


async def test_a_renewed_certificate_is_the_same_device(pki, secured, coordinator):
    async with connected(settings_of(pki, secured, GOOD), "a", mine(GOOD)):
        pass
    await coordinator.link.publish(down(GOOD), b"waits")
    async with connected(settings_of(pki, secured, GOOD), "a", mine(GOOD)) as renewed:
        await renewed.until(down(GOOD))
