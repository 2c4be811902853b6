"""A state folder that is put back from a backup: who is let in, who is not, and what is missed is said."""

import shutil
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator.admission import Admission
from coordinator.backup import back_up, backup_of
from coordinator.identity.book import FILE
from coordinator.identity.desk import Desk
from coordinator.identity.places import Places
from protocol.enrolment import EnrolRequest, RenewRequest
from protocol.errors import Misconfigured, Reason, Refused
from runtime.clock import SystemClock
from runtime.settings import MqttSettings, TlsSettings
from tests.support.identity_desk import csr, make_desk, new_key, settings, signature

DAY = 86400.0


def enrol(desk: Desk, device: str = "pi-1"):
    key, token = new_key(), desk.invite(device, 3600.0).token
    answer = desk.enrol(EnrolRequest(token=token, device=device, csr=csr(key)))
    return key, answer.certificate


def renew(desk: Desk, key, certificate: str | None):
    """A new key with its certificate, for an older one."""
    new = new_key()
    request = csr(new)
    asked = RenewRequest(certificate=certificate, csr=request, signature=signature(key, request))
    return new, desk.renew(asked).certificate


def put_back(book: Path, copy: bytes) -> None:
    for part in ("-wal", "-shm"):
        book.with_name(book.name + part).unlink(missing_ok=True)
    book.write_bytes(copy)


def test_an_older_book_takes_newer_certificates_over_and_none_that_it_knows_as_exchanged(tmp_path) -> None:
    now = [time.time() - 100 * DAY]
    book = tmp_path / "state" / FILE
    with make_desk(tmp_path, wall=lambda: now[0]) as desk:
        oldest = enrol(desk)
        now[0] += 30 * DAY
        old = renew(desk, *oldest)
        back_up(book)
        copy = backup_of(book).read_bytes()
        now[0] += 30 * DAY
        held = renew(desk, *old)
    put_back(book, copy)
    with Desk(settings(tmp_path), wall=lambda: now[0]) as desk, capture_logs() as logs:
        with pytest.raises(Refused, match="exchanged before"):
            renew(desk, *oldest)
        newest = renew(desk, *held)
        assert [one["device"] for one in logs if "put back from a backup" in one["event"]] == ["pi-1"]
        with pytest.raises(Refused, match="exchanged before"):
            renew(desk, *old)  # whoever has an old image is not the device any more
        assert renew(desk, *newest)[1]
        assert desk.book.revoke("pi-1") == 5, "the one that was taken over can be taken back, too"


def test_a_revocation_that_the_older_book_has_stands(tmp_path) -> None:
    now = [time.time() - 100 * DAY]
    book = tmp_path / "state" / FILE
    with make_desk(tmp_path, wall=lambda: now[0]) as desk:
        thief = enrol(desk)
        desk.book.revoke("pi-1")
        back_up(book)
    with Desk(settings(tmp_path), wall=lambda: now[0]) as desk:
        with pytest.raises(Refused) as found:
            renew(desk, *thief)
        assert found.value.reason is Reason.REVOKED


async def test_who_is_revoked_is_barred_without_an_authority_too(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        desk.book.revoke("pi-1", unknown=True)
        shutil.rmtree(desk.places.authority)
    admission = Admission(settings(tmp_path), SystemClock())
    admission.open()
    refusal = admission.barred("pi-1")
    assert refusal is not None
    assert refusal.reason is Reason.REVOKED
    assert admission.barred("pi-2") is None
    admission.close()


def test_without_the_authority_that_was_here_it_does_not_start(tmp_path) -> None:
    chosen = settings(tmp_path)
    with make_desk(tmp_path) as desk:
        enrol(desk)
        shutil.rmtree(desk.places.authority)
    with pytest.raises(Misconfigured, match=r"knows 1 certificate.*put the state_dir back from a backup"):
        Admission(chosen, SystemClock()).open()
    (chosen.state_dir / FILE).unlink()
    pair = Places.of(chosen).coordinator
    shown = MqttSettings(tls=TlsSettings(cert_file=pair, key_file=pair))
    with pytest.raises(Misconfigured, match=r"mqtt\.tls\.cert_file"):
        Admission(chosen.model_copy(update={"mqtt": shown}), SystemClock()).open()
    off = chosen.identity.model_copy(update={"enabled": False})
    Admission(chosen.model_copy(update={"identity": off}), SystemClock()).open()
