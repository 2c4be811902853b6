"""Enrolment against a small HTTPS service with the real authority behind it."""

import json
import stat
import time

import pytest
from cryptography import x509

from edge_agent.identity import keys
from edge_agent.identity.enrolment import enrol
from edge_agent.identity.files import IdentityFiles, folder_of
from edge_agent.identity.retry import RetryPolicy
from protocol.enrolment import CA_PATH, ENROL_PATH
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.mqtt.tls import tls_context
from runtime.settings.load import MqttSettings, TlsSettings
from runtime.storage.folder_lock import FolderLock
from tests.support.identity.pki import DAY_S, FLEET, HOST, Pki
from tests.support.identity.stub import Stub, refusal


class Waits:
    """A patience whose sleeps take no time and are written down."""

    def __init__(self, limit_s: float = 600.0) -> None:
        self.slept: list[float] = []
        self.said: list[str] = []
        self._now = 0.0
        self.patience = RetryPolicy(limit_s, self.said.append, lambda: self._now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def stub(pki):
    with Stub(pki) as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "state")


def run(folder: IdentityFiles, stub: Stub, waits: Waits | None = None, device: str = "d1", **options):
    invite = options.pop("invite", None) or stub.invite()
    return enrol(folder, invite, device, (waits or Waits()).patience, timeout_s=5.0, **options)


def test_a_certificate_for_a_key_that_never_left_the_device(folder, stub):
    done = run(folder, stub)
    assert not done.before
    assert stub.paths() == [CA_PATH, ENROL_PATH]
    assert b"PRIVATE" not in b"".join(body for _, body in stub.requests)
    assert sorted(p.name for p in folder.path.iterdir()) == ["ca.pem", "device.pem", "identity.json", "lock"]
    for path in (folder.pair, folder.record, folder.authority):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    pem = folder.pair.read_bytes()
    key, certificate = keys.load_key(pem, "pair"), x509.load_pem_x509_certificate(pem)
    assert certificate.public_key() == key.public_key()
    identity = folder.read()
    assert identity == done.identity
    assert (identity.fleet, identity.device, identity.broker_host) == (FLEET, "d1", HOST)
    assert abs(identity.issued_at - time.time()) < 60, (
        "by the service's clock, not the back-dated certificate"
    )
    assert identity.not_after == certificate.not_valid_after_utc.timestamp()


def test_what_enrolment_leaves_behind_is_what_the_link_loads(folder, stub):
    run(folder, stub)
    tls = TlsSettings(ca_file=folder.authority, cert_file=folder.pair, key_file=folder.pair)
    assert tls_context(MqttSettings(tls=tls)) is not None


def test_the_same_command_again_asks_nobody(folder, stub):
    first = run(folder, stub).identity
    stub.requests.clear()
    again = run(folder, stub)
    assert again.before
    assert again.identity == first
    assert not stub.requests


def test_another_invite_does_not_replace_an_identity_unless_told_so(folder, stub):
    run(folder, stub)
    before = folder.pair.read_bytes()
    other = stub.invite(token="u" * 32)
    with pytest.raises(Misconfigured, match=r"enrolled as 'd1'.*--replace"):
        run(folder, stub, invite=other)
    assert folder.pair.read_bytes() == before
    stub.keys.clear()
    stub.on_request = lambda path, body: (
        stub._issue(json.loads(body)["csr"], "d1") if path == ENROL_PATH else None
    )
    assert not run(folder, stub, invite=other, replace=True).before
    assert folder.pair.read_bytes() != before


def test_replace_with_the_invite_that_was_used_asks_for_a_new_one(folder, stub):
    run(folder, stub)
    before = folder.pair.read_bytes()
    with pytest.raises(Refused, match=r"--replace needs a new invite \(lichen device invite d1\)") as told:
        run(folder, stub, replace=True)
    assert told.value.reason is Reason.BAD_INVITE
    assert folder.pair.read_bytes() == before
    # A power cut in the middle of the replacement itself: the same command goes on.
    folder.write(folder.next_key, keys.key_pem(keys.load_key(before, "pair")))
    assert run(folder, stub, replace=True).before


def test_it_waits_for_the_operator_and_says_so(folder, stub):
    stub.pending = 3
    waits = Waits()
    run(folder, stub, waits, device="d7", invite=stub.invite(device=None))
    assert waits.slept == [2.0, 2.0, 2.0]
    assert len(waits.said) == 1
    assert "lichen device approve d7" in waits.said[0]
    requests = {body for path, body in stub.requests if path == ENROL_PATH}
    assert len({json.loads(body)["token"] for body in requests}) == 1


def test_no_approval_in_time_ends_and_the_same_command_goes_on_with_the_same_key(folder, stub):
    stub.pending = 10**9
    with pytest.raises(Transient, match=r"not approved in 20 s.*same command"):
        run(folder, stub, Waits(20.0))
    key = folder.next_key.read_bytes()
    stub.pending = 0
    run(folder, stub)
    assert keys.key_pem(keys.load_key(folder.pair.read_bytes(), "")) == key


def test_a_wrong_fingerprint_is_named_and_nothing_is_sent(folder, stub):
    with pytest.raises(Refused, match=r"invite says f{64}.*nothing was sent") as caught:
        run(folder, stub, invite=stub.invite(ca_sha256="f" * 64))
    assert caught.value.reason == Reason.WRONG_DIGEST
    assert stub.paths() == [CA_PATH], "neither token nor request"
    assert not folder.pair.exists()


def test_somebody_in_between_who_shows_the_true_authority_but_another_certificate(folder, pki, tmp_path):
    (tmp_path / "other").mkdir()
    mallory = Pki(tmp_path / "other")
    with Stub(pki, certificate=mallory.server()) as stub:
        with pytest.raises(Refused, match="another server answers") as caught:
            run(folder, stub)
        assert caught.value.reason == Reason.WRONG_DIGEST
        assert stub.paths() == [CA_PATH]


def test_a_device_cannot_stand_in_for_the_service(folder, pki):
    """Its certificate is signed by the same authority, but for clients, and for no host."""
    with Stub(pki, certificate=pki.device("127.0.0.1").pair) as stub:
        with pytest.raises((Refused, Misconfigured)):
            run(folder, stub)
        assert stub.paths() == [CA_PATH]


def test_a_service_under_another_host_name_says_what_to_do(folder, pki):
    with Stub(pki, certificate=pki.server(["elsewhere.example"])) as stub:
        with pytest.raises(Misconfigured, match=r"coordinator init --host 127\.0\.0\.1"):
            run(folder, stub)
        assert stub.paths() == [CA_PATH]


def test_a_used_invite_is_refused_with_the_coordinators_words(folder, stub):
    stub.keys["t" * 32] = "another key"
    with pytest.raises(Refused, match="used with another key") as caught:
        run(folder, stub)
    assert caught.value.reason == Reason.BAD_INVITE
    assert not folder.pair.exists()


def test_busy_and_absent_services_are_tried_again_with_longer_waits(folder, stub):
    answers = [(503, b"busy"), (429, b"slow down"), refusal(Reason.FULL, "no room", 409)]
    stub.on_request = lambda path, _body: answers.pop() if path == ENROL_PATH and answers else None
    waits = Waits()
    run(folder, stub, waits)
    assert len(waits.slept) == 3
    assert waits.slept[0] < waits.slept[2]
    assert any("no room" in words for words in waits.said)


def test_nobody_there_ends_after_the_limit(folder, stub):
    waits = Waits(100.0)
    with pytest.raises(Transient, match="not there: connection refused"):
        run(folder, stub, waits, invite=stub.invite(url="https://127.0.0.1:9"))
    assert sum(waits.slept) <= 100
    assert len(waits.slept) >= 6, "the first six waits, at most 63 s in all, always fit"
    assert len(waits.said) == 1, "the same words once"


@pytest.mark.parametrize("forged", ["key", "name", "signer", "none", "short", "device"])
def test_a_certificate_that_was_not_asked_for_is_not_taken(folder, stub, pki, tmp_path, forged):
    (tmp_path / "other").mkdir()
    other = Pki(tmp_path / "other")

    def forge(path, body):
        if path != ENROL_PATH:
            return None
        csr = json.loads(body)["csr"]
        answer = json.loads(stub._issue(csr, "d1")[1])
        authority = other.authority if forged == "signer" else pki.authority
        made = {
            "key": lambda: pki.device("d1").pair.read_text().split("-----BEGIN PRIVATE")[0],
            "name": lambda: authority.issue_device(csr, "d2").certificate_pem,
            "signer": lambda: authority.issue_device(csr, "d1").certificate_pem,
            "none": lambda: None,
            "short": lambda: authority.issue_device(csr, "d1", -0.99).certificate_pem,
            "device": lambda: answer["certificate"],
        }[forged]()
        answer |= {"certificate": made, "device": "d2" if forged == "device" else "d1"}
        return 200, json.dumps(answer).encode()

    stub.on_request = forge
    with pytest.raises(Refused):
        run(folder, stub)
    assert not folder.pair.exists()
    assert not folder.record.exists()
    assert folder.next_key.exists(), "the honest answer may still come"


def test_the_services_clock_is_believed_only_within_the_certificates_time(folder, stub):
    stub.date = "Thu, 01 Jan 1970 00:00:00 GMT"
    identity = run(folder, stub).identity
    assert identity.issued_at == pytest.approx(time.time() - DAY_S, abs=60), "the certificate's own beginning"


def test_a_pending_key_that_others_can_read_is_not_used(folder, stub):
    folder.make()
    folder.write(folder.next_key, keys.key_pem(keys.new_key()))
    folder.next_key.chmod(0o644)
    with pytest.raises(Misconfigured, match=r"others may read it.*mode 0644.*chmod 600"):
        run(folder, stub)
    assert not stub.requests


def test_a_spoilt_pending_key_is_made_anew(folder, stub):
    folder.make()
    folder.write(folder.next_key, b"\0" * 200)
    run(folder, stub)
    assert folder.pair.exists()


def test_a_folder_that_was_open_is_closed(folder, stub):
    folder.path.mkdir(parents=True)
    folder.path.chmod(0o777)
    run(folder, stub)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_private_key_that_became_readable_is_a_warning(folder, stub):
    run(folder, stub)
    assert folder.exposed() == []
    folder.pair.chmod(0o640)
    assert "0640" in folder.exposed()[0]


def test_two_enrolments_at_once_do_not_mix(folder, stub):
    folder.make()
    owner = FolderLock(folder.lock, "test")
    with pytest.raises(Misconfigured, match="another enrolment or renewal"):
        run(folder, stub)
    owner.close()
    run(folder, stub)


def test_a_damaged_record_is_said_and_can_be_replaced(folder, stub):
    run(folder, stub)
    folder.record.write_text("{")
    with pytest.raises(Misconfigured, match=r"identity\.json: damaged"):
        run(folder, stub)
    stub.keys.clear()
    assert not run(folder, stub, replace=True).before
