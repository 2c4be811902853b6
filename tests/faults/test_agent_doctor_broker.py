"""The doctor at real brokers: open, closed, with the access list of the operator's files, silent, small."""

import asyncio
import json
import os
import socket
import time

import pytest

from coordinator.identity.mosquitto import ACL
from edge_agent.config.agent import read
from edge_agent.doctor.checks import broker, broker_question
from edge_agent.doctor.findings import Finding
from edge_agent.status.status_file import STATUS_FILE
from edge_agent.storage.agent_storage import LOCK_FILE
from protocol.errors import Misconfigured
from protocol.topics import Kind, device_topic
from runtime.storage.folder_lock import FolderLock
from tests.support.identity.broker import SecuredBroker, connected
from tests.support.identity.pki import FLEET, Pki
from tests.support.network.brokers import HOST, free_port, mosquitto_process
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config

pytestmark = pytest.mark.mosquitto


def asked(folder, port: int, more: str = "", *, device: str = "d", fleet: str = "f") -> dict[str, Finding]:
    text = BASIC.replace('"d"', f'"{device}"').replace('"f"', f'"{fleet}"')
    settings = read(config(folder, text=f'{text}[mqtt]\nhost = "{HOST}"\nport = {port}\n{more}'))
    found = broker.judge(broker_question.probe(settings, 3.0), settings, time.time())
    assert all(finding.todo for finding in found if finding.level != "ok")
    return {finding.check: finding for finding in found}


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def secured(pki, tmp_path_factory):
    made = SecuredBroker(tmp_path_factory.mktemp("broker") / "mosquitto", pki)
    made.process.start()
    yield made
    made.process.stop()


def tls(shown) -> str:
    return f'[mqtt.tls]\nca_file = "{shown.ca}"\ncert_file = "{shown.pair}"\nkey_file = "{shown.pair}"\n'


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_an_open_broker_is_well_but_for_what_it_lets_do(tmp_path, protocol):
    process = mosquitto_process(tmp_path / "m").start()
    try:
        found = asked(tmp_path, process.port, f'protocol = "{protocol}"\n')
    finally:
        process.stop()
    assert {finding.level for finding in found.values()} == {"ok"}
    assert ("pose as all" in found["broker.acl"].seen) is (protocol == "5")


def test_a_broker_that_takes_small_packets_alone(tmp_path):
    process = mosquitto_process(tmp_path / "m", "max_packet_size 20000").start()
    try:
        found = asked(tmp_path, process.port)
    finally:
        process.stop()
    assert found["broker.packets"].level == "warn"
    assert "at most 20000 bytes" in found["broker.packets"].seen


def test_a_broker_that_wants_a_password(tmp_path):
    process = mosquitto_process(tmp_path / "m", anonymous=False).start()
    try:
        found = asked(tmp_path, process.port)
    finally:
        process.stop()
    assert found["broker.admission"].level == "fail"
    assert "mqtt.username" in found["broker.admission"].todo


def test_the_operators_access_list_lets_a_device_be_itself_and_nobody_else(tmp_path, pki, secured):
    found = asked(tmp_path, secured.port, tls(pki.device("good")), device="good", fleet=FLEET)
    assert {check: finding.level for check, finding in found.items()} == {
        "broker.reach": "ok",
        "broker.tls": "ok",
        "broker.admission": "ok",
        "broker.acl": "ok",
        "broker.packets": "ok",
    }
    assert "another device's are not" in found["broker.acl"].seen


def test_an_access_list_without_a_further_task_of_the_device_is_found(tmp_path, pki):
    folder = tmp_path / "mosquitto"
    broker = SecuredBroker(folder, pki)
    rules = (folder / ACL).read_text()
    (folder / ACL).write_text(
        rules.replace("lichen/v1/+/", f"lichen/v1/{FLEET}/")
    )  # as by hand, for one task
    broker.process.start()
    try:
        more = f'{tls(pki.device("good"))}[[tasks]]\nname = "sound"\n'
        found = asked(tmp_path, broker.port, more, device="good", fleet=FLEET)
    finally:
        broker.process.stop()
    assert found["broker.acl"].level == "fail"
    assert f"lichen/v1/{FLEET}~sound/" in found["broker.acl"].seen


async def test_a_running_agent_of_a_fleet_with_identities_keeps_its_connection(tmp_path, pki, secured):
    """Its lock and its status are the real agent's files; its connection is the device's own."""
    shown = pki.device("busy")
    owner, status = (tmp_path / "state", tmp_path / "cache")
    owner.mkdir()
    status.mkdir()
    async with connected(shown.mqtt(secured.port), f"agent-{FLEET}-busy", []) as agent:
        words = {"pid": os.getpid(), "wall": time.time(), "link": agent.link.why}
        (status / STATUS_FILE).write_text(json.dumps(words))
        running = FolderLock(owner / LOCK_FILE, "agent")
        try:
            found = await asyncio.to_thread(
                asked, tmp_path, secured.port, tls(shown), device="busy", fleet=FLEET
            )
        finally:
            running.close()
        assert {check: one.level for check, one in found.items()} == {
            "broker.reach": "ok",
            "broker.tls": "ok",
            "broker.admission": "ok",
        }
        assert "connected to" in found["broker.admission"].seen
        marker = device_topic(FLEET, "busy", Kind.STATE)
        async with asyncio.timeout(10):
            await agent.link.publish(marker, b"{}")
        assert agent.link.counters.reconnects == 0, "it was never cut off"


def test_a_name_that_is_not_the_certificates(tmp_path, pki, secured):
    found = asked(tmp_path, secured.port, tls(pki.device("good")), device="other", fleet=FLEET)
    assert found["broker.acl"].level == "fail"
    assert "may not write on its own topics" in found["broker.acl"].seen


def test_an_authority_that_is_not_the_brokers(tmp_path, secured):
    (tmp_path / "pki").mkdir()
    stranger = Pki(tmp_path / "pki")
    found = asked(tmp_path, secured.port, tls(stranger.device("good")), device="good", fleet=FLEET)
    assert found["broker.tls"].level == "fail"
    assert "mqtt.tls.ca_file" in found["broker.tls"].seen
    assert "broker.admission" not in found


def test_a_certificate_that_was_taken_back(tmp_path, pki, secured):
    gone = pki.device("gone")
    secured.revoke("gone", gone)
    found = asked(tmp_path, secured.port, tls(gone), device="gone", fleet=FLEET)
    assert found["broker.admission"].level == "fail"


def test_nobody_there_and_somebody_who_says_nothing(tmp_path):
    assert "connection refused" in asked(tmp_path, free_port())["broker.reach"].seen
    with socket.socket() as mute:
        mute.bind((HOST, 0))
        mute.listen()
        began = time.monotonic()
        found = asked(tmp_path, mute.getsockname()[1])
        assert found["broker.admission"].level == "fail"
        assert time.monotonic() - began < 30


def test_a_name_that_nobody_knows(tmp_path):
    settings = read(config(tmp_path, text=BASIC + '[mqtt]\nhost = "no-such-host.invalid"\n'))
    found = broker.judge(broker_question.probe(settings, 5.0), settings, time.time())
    assert [(finding.check, finding.level) for finding in found] == [("broker.reach", "fail")]
    assert "resolvectl" in found[0].todo


def test_a_file_that_is_missing_is_said_with_its_key(tmp_path):
    process = mosquitto_process(tmp_path / "m").start()
    try:
        with pytest.raises(Misconfigured, match=r"mqtt\.tls\.ca_file"):
            asked(tmp_path, process.port, '[mqtt.tls]\nca_file = "/no/ca.pem"\n')
    finally:
        process.stop()
