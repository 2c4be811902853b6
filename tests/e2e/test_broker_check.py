"""``lichen broker check`` against real brokers: Mosquitto, one that is set up badly, and three NATS nodes."""

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import NoAnswer
from lichen.broker.lab import Lab
from lichen.broker.probes.access import access
from lichen.broker.verdicts.table import TABLE
from runtime import exit_codes
from runtime.settings.load import MqttSettings
from tests.support.network.brokers import HOST, free_port, mosquitto_process, require_mosquitto
from tests.support.network.nats import NatsNodes, require_nats

pytestmark = pytest.mark.mosquitto
ROWS = [check.name for checks in TABLE.values() for check in checks]
POOR = (
    "retain_available false\nmax_packet_size 20000\nmax_queued_messages 50\nmax_inflight_messages 5\n"
    "max_keepalive 60\n"
)
ACL = (
    "user operator\ntopic readwrite #\nuser loose\ntopic readwrite #\n"
    "pattern write lichen/v1/barn/d/%u/ping\n"
)


@dataclass
class Report:
    """One run of the command."""

    status: int
    found: dict
    errors: str

    def row(self, name: str) -> dict:
        return next(row for row in self.found["findings"] if row["check"] == name)

    def result(self, name: str) -> str:
        return self.row(name)["result"]

    def names(self, result: str) -> set[str]:
        return {row["check"] for row in self.found["findings"] if row["result"] == result}


def started(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "lichen", "broker", "check", *words, "--format", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def report(process: subprocess.Popen[bytes]) -> Report:
    out, errors = process.communicate(timeout=90)
    assert out, errors.decode()
    return Report(process.returncode, json.loads(out), errors.decode())


def accounts(folder):
    """Mosquitto with an operator, a device with its own topics, and one that may do everything."""
    folder.mkdir()
    passwords, acl = folder / "passwords", folder / "acl"
    passwords.write_text("".join(f"{name}:secret\n" for name in ("operator", "shed", "loose")))
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True, capture_output=True)
    for file in (passwords, acl):
        file.touch()
        file.chmod(0o600)
    acl.write_text(ACL)
    (folder / "password").write_text("secret\n")
    more = f"password_file {passwords}\nacl_file {acl}\n"
    return mosquitto_process(folder / "broker", more, anonymous=False)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """The brokers, and a running check of each; all at once, for they mostly wait."""
    require_mosquitto()
    folder = tmp_path_factory.mktemp("brokers")
    with ExitStack() as stack:
        good, poor = accounts(folder / "good"), mosquitto_process(folder / "poor", POOR)
        for one in (good, poor):
            one.start()
            stack.callback(one.stop)
        device = folder / "agent.toml"
        device.write_text(
            f'fleet = "barn"\ndevice = "shed"\n[mqtt]\nhost = "{HOST}"\nport = {good.port}\n'
            f'username = "shed"\npassword_file = "{folder}/good/password"\n'
        )
        operator = ("--username", "operator", "--password-file", str(folder / "good" / "password"))
        running = {
            "good": started(
                f"mqtt://{HOST}:{good.port}", *operator, "--fleet", "barn", "--device-config", str(device)
            ),
            "poor": started(f"{HOST}:{poor.port}", "--prefix", "site/test"),
        }
        try:
            require_nats()
        except pytest.skip.Exception:
            running["nats"] = None
        else:
            nats = stack.enter_context(NatsNodes(folder / "nats"))
            running["nats"] = started(f"mqtt://{HOST}:{nats.nodes[1].port}")
        yield {"ports": {"good": good.port}, "password": folder / "good" / "password", "running": running}


@pytest.fixture(scope="module")
def mosquitto_report(brokers):
    return report(brokers["running"]["good"])


@pytest.fixture(scope="module")
def nats_report(brokers):
    require_nats()
    return report(brokers["running"]["nats"])


def test_mosquitto_has_what_lichen_needs(mosquitto_report) -> None:
    assert mosquitto_report.status == exit_codes.OK, mosquitto_report.errors
    assert mosquitto_report.found["usable"]
    assert mosquitto_report.found["protocol"] == "5"
    assert sorted(row["check"] for row in mosquitto_report.found["findings"]) == sorted(ROWS)
    assert mosquitto_report.names("failed") == mosquitto_report.names("untried") == set()
    # Mosquitto does not hand on what a shared subscriber held that died or is away.
    assert mosquitto_report.names("limited") <= {"shared.dead", "shared.away"}
    assert mosquitto_report.row("shared.once")["measured"] == "200 of 200, each once"
    assert mosquitto_report.row("packet.largest")["measured"].startswith("1,049,088 bytes")
    assert {
        mosquitto_report.result(f"access.{name}") for name in ("nameless", "own", "foreign", "broadcast")
    } == {"passed"}


def test_three_nats_nodes_have_what_one_ingest_worker_needs(nats_report) -> None:
    assert nats_report.status == exit_codes.OK, nats_report.errors
    assert nats_report.found["protocol"] == "3.1.1"
    assert nats_report.names("failed") == set()
    assert 'protocol = "3.1.1"' in nats_report.row("version")["consequence"]
    assert nats_report.result("client_id.dot") == "limited"
    assert nats_report.result("topic.dot") == "passed"
    assert nats_report.row("shared.once")["measured"] == "the subscription is granted, but nothing comes"
    assert "one ingest process only" in nats_report.row("shared.once")["consequence"]
    for name in ("retained.wildcard", "retained.replaced", "qos1.again", "session.queue", "will.cut", "tidy"):
        assert nats_report.result(name) == "passed", nats_report.row(name)
    largest = int(nats_report.row("packet.largest")["measured"].split(" ")[0].replace(",", ""))
    assert 1_000_000 < largest < 1_049_088, "max_payload of NATS is 1 MiB"


def test_a_broker_without_retained_messages_fails_and_each_limit_is_named(brokers) -> None:
    found = report(brokers["running"]["poor"])
    assert found.status == exit_codes.DATAERR
    assert not found.found["usable"]
    failed = {"retained.subscribe", "retained.replaced"}
    assert failed <= found.names("failed")
    packet = found.row("packet.largest")
    assert packet["measured"] == "20,000 bytes arrive; CONNACK says 20,000"
    assert packet["consequence"] == (
        "set max_packet_bytes = 20000 and chunk_bytes = 19456 in [mqtt] of every daemon"
    )
    assert found.row("session.queue")["measured"].startswith("5")
    assert found.result("session.queue") == "limited"
    assert found.result("access.nameless") == "limited"
    assert found.result("tidy") == "passed"


def test_a_device_that_may_write_everywhere_is_noticed(brokers) -> None:
    shared = {"host": HOST, "port": brokers["ports"]["good"], "password_file": brokers["password"]}
    operator = MqttSettings(username="operator", **shared)
    lab = Lab(operator, "secret", "site/check-1", "1", "barn", operator, "secret", "loose")
    lab.device = MqttSettings(username="loose", **shared)
    facts = access(lab)
    assert (facts.nameless, facts.device_in, facts.own, facts.foreign, facts.broadcast) == (
        False, "", True, True, True,
    )  # fmt: skip
    assert "not" in access(replace(lab, device_password="other")).device_in.lower()  # noqa: S106 - not one


@pytest.mark.usefixtures("mosquitto_report")
def test_the_check_leaves_no_messages(brokers) -> None:
    settings = MqttSettings(host=HOST, port=brokers["ports"]["good"], username="operator")
    with ProbeClient(settings, "secret", "after") as client:
        client.connect().subscribe("#")
        assert [one.topic for one in client.quiet(0.3)] == []


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("mqtt://127.0.0.1:{port}",), exit_codes.UNAVAILABLE, "connection refused"),
        (("http://x",), exit_codes.CONFIG, "write mqtt://host:port"),
        (("mqtt://me:secret@x",), exit_codes.CONFIG, "--password-file"),
        (("mqtt://x", "--prefix", "a/+/b"), exit_codes.CONFIG, "no '+'"),
        (("mqtt://x", "--protocol", "4"), exit_codes.CONFIG, "protocol"),
        ((), exit_codes.CONFIG, "which broker?"),
    ],
)
def test_wrong_words_are_refused_with_a_remedy(words, status, says, capsys) -> None:
    from lichen.cli import main  # noqa: PLC0415

    with pytest.raises(SystemExit) as ended:
        main(["broker", "check", *(word.format(port=free_port()) for word in words)])
    assert ended.value.code == status
    assert says in capsys.readouterr().err


def test_a_port_that_says_nothing_costs_a_bounded_time() -> None:
    import socket  # noqa: PLC0415

    with socket.create_server((HOST, 0)) as mute:
        settings = MqttSettings(host=HOST, port=mute.getsockname()[1], connect_timeout_s=0.2)
        with pytest.raises(NoAnswer, match=r"no CONNACK in 0\.2 s"):
            ProbeClient(settings, None, "x").connect()
