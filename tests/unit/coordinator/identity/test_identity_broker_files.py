"""What is written for the broker: who may do what, whole files, right modes, a reload that fails is said."""

import grp
import os
import stat

import pytest
from cryptography import x509

from coordinator.identity import mosquitto
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.mosquitto import Broker, render_acl, render_conf
from coordinator.identity.paths import is_fresh, refresh_server
from lichen.commands.looking import as_onlooker
from protocol.errors import Misconfigured, Transient
from protocol.topics import coordinator_filters, device_filters
from runtime.settings.load import MqttSettings, TlsSettings
from tests.support.identity.desk import csr, make_desk, new_key, settings

DAY = 86400.0


def keys(conf: str) -> dict[str, str]:
    lines = [line for line in conf.splitlines() if line and not line.startswith("#")]
    return {line.split()[0]: line.partition(" ")[2] for line in lines}


def test_nobody_connects_without_a_certificate_and_nobody_chooses_a_name(tmp_path) -> None:
    found = keys(render_conf(Broker(tmp_path, "f", 8883, "127.0.0.1")))
    assert found["listener"] == "8883 127.0.0.1"
    for key in ("require_certificate", "use_identity_as_username", "use_username_as_clientid", "persistence"):
        assert found[key] == "true"
    assert found["allow_anonymous"] == "false"
    assert found["max_queued_messages"] == "0", "at the default a burst is dropped after its PUBACK"
    assert int(found["max_queued_bytes"]) > 0
    assert int(found["max_packet_size"]) > 256 * 1024
    assert int(found["autosave_interval"]) <= 10
    assert keys(render_conf(Broker(tmp_path, "f")))["listener"] == "8883"


def test_what_a_broker_already_says_stands_only_in_a_configuration_of_its_own(tmp_path) -> None:
    broker = Broker(tmp_path, "f", user="lichen")
    own, included = keys(render_conf(broker)), keys(render_conf(broker, included=True))
    assert set(own) - set(included) == {"persistence_location", "user"}


def test_the_list_allows_what_daemons_subscribe_to() -> None:
    acl = render_acl("f").splitlines()
    assert all(f"topic read {one}" in acl for one in coordinator_filters("f"))
    reads = {
        line.split()[-1].replace("%u", "pi").replace("+", "f")
        for line in acl
        if line.startswith("pattern read")
    }
    for wanted, _ in device_filters("f", "pi"):
        assert wanted in reads or any(wanted.startswith(one.removesuffix("#")) for one in reads)
    assert not [line for line in acl if line.startswith("topic") and "+/up" in line and "write" in line]


def test_revoked_devices_are_denied_all_and_once() -> None:
    acl = render_acl("f", ["b", "a", "b"])
    assert acl.count("topic deny #") == 2
    assert acl.index("user a\ntopic deny #") < acl.index("user b\ntopic deny #")


def test_files_are_ours_alone_or_the_brokers_too(tmp_path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    for name, given, folder_mode, file_mode in (("a", "", 0o700, 0o600), ("b", group, 0o750, 0o640)):
        broker = Broker(tmp_path / name, "f", group=given)
        mosquitto.write_server(broker, "ca", b"pair")
        mosquitto.write_rules(broker, [], b"crl")
        files = [file for file in broker.folder.rglob("*") if file.is_file()]
        assert {file.name for file in files} == {
            *("acl", "crl.pem", "ca.crt", "server.pem", "mosquitto.conf", "lichen.conf")
        }
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {file_mode}
        handed_down = stat.S_ISGID if given else 0
        assert stat.S_IMODE(broker.folder.stat().st_mode) == folder_mode | handed_down
        assert 0o777 & stat.S_IMODE((broker.folder / "data").stat().st_mode) == folder_mode | (
            0o020 if given else 0
        )


def test_a_group_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(Misconfigured, match=r"identity\.broker_group.*'nobody-here'"):
        mosquitto.write_rules(Broker(tmp_path / "a", "f", group="nobody-here"), [], b"crl")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/bin/false"], "ended with 1"),
        (["/bin/sh", "-c", "echo not today >&2; exit 3"], "not today"),
        (["/no/such/command"], "No such file"),
    ],
)
def test_a_reload_that_fails_says_what_it_means(command, words: str) -> None:
    with pytest.raises(Transient, match=words) as found:
        mosquitto.reload(command)
    assert "still lets revoked devices in" in str(found.value)


def test_a_reload_that_hangs_is_cut(monkeypatch) -> None:
    monkeypatch.setattr(mosquitto, "_RELOAD_S", 0.2)
    with pytest.raises(Transient, match="timed out"):
        mosquitto.reload(["/bin/sleep", "30"])


def test_publishing_is_done_once_and_made_good_where_it_was_interrupted(tmp_path, monkeypatch) -> None:
    with make_desk(tmp_path) as desk:
        assert desk.publish().changed
        assert not desk.publish().changed
        desk.book.revoke("pi-1", unknown=True)
        with monkeypatch.context() as patch:
            patch.setattr(mosquitto, "write_rules", lambda *_: 1 // 0)  # as a power cut there
            with pytest.raises(ZeroDivisionError):
                desk.publish()
        acl = desk.places.broker.folder / "acl"
        assert "user pi-1" not in acl.read_text()
        assert desk.publish().changed
        assert "user pi-1" in acl.read_text()
        acl.unlink()
        assert desk.publish().changed, "what somebody removed is written again"


def test_a_revoked_certificate_is_in_the_list_and_each_list_is_newer(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        crl = desk.places.broker.folder / "crl.pem"
        begins = []
        for name in ("pi-1", "pi-2"):
            issued = desk.authority.issue_device(csr(new_key()), name)
            token = desk.book.invite(name, 60)
            desk.book.claim(token, name, name)
            desk.book.keep(name, name, issued)
            desk.book.revoke(name)
            desk.publish()
            made = x509.load_pem_x509_crl(crl.read_bytes())
            assert issued.serial in {one.serial_number for one in made}
            begins.append(made.last_update_utc)
        assert begins[0] < begins[1], "of two of the same second OpenSSL would keep the first"


def test_our_own_certificates_are_made_anew_before_they_run_out(tmp_path) -> None:
    now = [1_800_000_000.0]
    with make_desk(tmp_path, wall=lambda: now[0]) as desk:
        desk.publish()
        server, coordinator = desk.places.broker.folder / "server.pem", desk.places.coordinator
        before = server.read_bytes(), coordinator.read_bytes()
        now[0] += 400 * DAY
        assert not desk.publish().changed
        now[0] += 100 * DAY
        assert desk.publish().changed
        assert server.read_bytes() != before[0]
        assert coordinator.read_bytes() != before[1]
        assert is_fresh(server, desk.authority, desk.authority.hosts, now[0])
        now[0] -= 600 * DAY
        assert not is_fresh(server, desk.authority, desk.authority.hosts, now[0])


def test_a_new_certificate_of_the_broker_is_told_though_somebody_else_made_it(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        desk.publish()
        (desk.places.broker.folder / "server.pem").unlink()
        desk.prepare()  # as at the daemon's start
        with EnrolmentAuthority(settings(tmp_path)) as other:
            refresh_server(other.places, other.authority)
        assert desk.publish().changed, "it must be read by the broker"
        assert not desk.publish().changed


def test_hosts_that_init_adds_are_kept_by_a_coordinator_that_runs(tmp_path) -> None:
    with make_desk(tmp_path) as running:
        running.publish()
        Authority.load(running.authority.folder).with_hosts(["localhost", "127.0.0.1", "hub.example"])
        with EnrolmentAuthority(settings(tmp_path)) as init:
            assert init.publish().changed
        pair = running.places.https.read_bytes()
        running.publish()
        assert running.places.https.read_bytes() == pair, "the older view must not undo it"
        assert "hub.example" in running.authority.hosts


def test_who_looks_does_not_take_the_coordinators_place(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        desk.prepare()
        pair = desk.places.coordinator
        tls = TlsSettings(ca_file=desk.places.ca, cert_file=pair, key_file=pair)
        found = as_onlooker(MqttSettings(tls=tls)).tls
        assert found is not None
        assert found.cert_file == found.key_file == desk.places.observer
        (desk.places.own / "identity.json").touch()
        with pytest.raises(Misconfigured, match="lichen agent status"):
            as_onlooker(MqttSettings(tls=tls))
    for other in (None, TlsSettings(ca_file=desk.places.ca)):
        assert as_onlooker(MqttSettings(tls=other)).tls is other
