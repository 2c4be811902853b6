"""Revoking a device, where the broker's folder does not take its new files."""

from pathlib import Path

import pytest

from coordinator.actions import devices
from coordinator.audit.chain import Person
from coordinator.audit.log import read_log
from coordinator.identity.enrolment import EnrolmentAuthority, PublishedList
from protocol.errors import LichenError, Misconfigured, Transient
from runtime.storage.files import ReadOnlyDisk, full
from tests.support.identity.desk import make_desk, settings

ANN = Person("ann", "admin", "test")
FOLDER = Path("/etc/mosquitto/lichen")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ReadOnlyDisk(FOLDER / "crl.pem", "Read-only file system"), Transient, "is read-only"),
        (full(FOLDER / "crl.pem", FOLDER), Transient, "is full"),
        (Misconfigured("the folder denies access"), Misconfigured, "denies access"),
    ],
)
def test_the_person_reads_that_the_device_is_revoked_and_the_broker_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LichenError, kind: type[LichenError], words: str
) -> None:
    with make_desk(tmp_path) as desk:
        assert desk.book.standing("pi") == "unknown"

    def publish(_self: EnrolmentAuthority, **_: bool) -> PublishedList:
        raise error

    monkeypatch.setattr(EnrolmentAuthority, "publish", publish)
    chosen = settings(tmp_path)
    with pytest.raises(kind, match=f"pi is revoked, and the coordinator refuses it; but .*{words}"):
        devices.revoke(chosen, ANN, "pi", unknown=True)
    assert "failed: pi is revoked" in read_log(chosen.location)[-1].outcome
