"""A state folder that is put back from a backup: who is let in, who is not, and what is missed is said."""

import asyncio
import shutil
import stat
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.admission.operator_decisions import OperatorDecisions
from coordinator.cli.main import app
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.store import FILE
from coordinator.storage.backup import back_up, backup_of
from protocol.enrolment import EnrolRequest, RenewRequest
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.topics import Kind
from runtime.clock import SystemClock
from runtime.settings.load import MqttSettings, TlsSettings
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task
from tests.support.identity.desk import csr, make_desk, new_key, settings, signature
from tests.support.network.brokers import HOST, free_port

DAY = 86400.0


def enrol(desk: EnrolmentAuthority, device: str = "pi-1"):
    key, token = new_key(), desk.invite(device, 3600.0).token
    answer = desk.enrol(EnrolRequest(token=token, device=device, csr=csr(key)))
    return key, answer.certificate


def renew(desk: EnrolmentAuthority, key, certificate: str | None):
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
    with EnrolmentAuthority(settings(tmp_path), wall=lambda: now[0]) as desk, capture_logs() as logs:
        with pytest.raises(Refused, match="exchanged before"):
            renew(desk, *oldest)
        newest = renew(desk, *held)
        assert [one["device"] for one in logs if one["event"] == "newer_certificate_accepted"] == ["pi-1"]
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
    with EnrolmentAuthority(settings(tmp_path), wall=lambda: now[0]) as desk:
        with pytest.raises(Refused) as found:
            renew(desk, *thief)
        assert found.value.reason is Reason.REVOKED


async def test_a_whole_backup_of_a_running_coordinator_takes_its_place(tmp_path) -> None:
    config = tmp_path / "coordinator.toml"
    identity = {"host": HOST, "port": free_port()}
    config.write_text(
        f'fleet = "{FLEET}"\nstate_dir = "coordinator"\ntask = "task.toml"\n'
        f'[identity]\nhost = "{HOST}"\nport = {identity["port"]}\n'
    )
    state, copy, task = tmp_path / "coordinator", tmp_path / "copy", tiny_task(count=3, min_devices=1)
    Authority.create(state / "authority", FLEET, [HOST])
    async with bench(tmp_path, task, identity=identity) as made:
        held = enrol(desk_of(made), "a")
        desk_of(made).book.revoke("thief", unknown=True)
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.until(lambda: made.app.driver.state.version == 1)
        await made.phase("collecting")
        said = await asyncio.to_thread(CliRunner().invoke, app, ["backup", str(copy), "-c", str(config)])
        assert said.exit_code == 0, said.output
        before = made.app.driver.state
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert stat.S_IMODE((copy / FILE).stat().st_mode) == 0o600
    again = CliRunner().invoke(app, ["backup", str(copy), "-c", str(config)])
    assert "is not empty" in str(again.exception)
    shutil.rmtree(state)
    copy.rename(state)  # this is the whole restore
    async with bench(tmp_path, task, identity=identity) as made:
        after = made.app.driver.state
        assert (after.version, after.round, after.manifest) == (1, before.round, before.manifest)
        assert made.app.admission.denial("thief") is not None
        assert renew(desk_of(made), *held)[1], "devices renew as before"
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", after.round, made.app.driver.state.manifest)))
        await made.until(lambda: made.app.driver.state.version == 2)
        await made.until(backup_of(state / FILE).is_file)  # with each round the books are copied, too


def desk_of(made) -> EnrolmentAuthority:
    found = made.app.admission._desk
    assert found is not None
    return found


def test_a_damaged_book_is_noticed_when_it_is_opened_and_no_backup_is_made_of_it(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        for n in range(200):
            desk.book.invite(f"pi-{n}", 3600.0)
        book = desk.places.state_dir / FILE
    content = bytearray(book.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xff" * 8192
    book.write_bytes(bytes(content))
    with pytest.raises(Misconfigured, match=r"identity\.sqlite3.*\.backup"):
        EnrolmentAuthority(settings(tmp_path))
    with pytest.raises(Transient):
        back_up(book)
    assert not backup_of(book).exists()


async def test_who_is_revoked_is_barred_without_an_authority_too(tmp_path) -> None:
    with make_desk(tmp_path) as desk:
        desk.book.revoke("pi-1", unknown=True)
        shutil.rmtree(desk.places.authority)
    admission = OperatorDecisions(settings(tmp_path), SystemClock())
    admission.open()
    refusal = admission.denial("pi-1")
    assert refusal is not None
    assert refusal.reason is Reason.REVOKED
    assert admission.denial("pi-2") is None
    admission.close()


def test_without_the_authority_that_was_here_it_does_not_start(tmp_path) -> None:
    chosen = settings(tmp_path)
    with make_desk(tmp_path) as desk:
        enrol(desk)
        shutil.rmtree(desk.places.authority)
    with pytest.raises(Misconfigured, match=r"knows 1 certificate.*restore the state_dir from a backup"):
        OperatorDecisions(chosen, SystemClock()).open()
    (chosen.state_dir / FILE).unlink()
    pair = IdentityPaths.of(chosen).coordinator
    shown = MqttSettings(tls=TlsSettings(cert_file=pair, key_file=pair))
    with pytest.raises(Misconfigured, match=r"mqtt\.tls\.cert_file"):
        OperatorDecisions(chosen.model_copy(update={"mqtt": shown}), SystemClock()).open()
    off = chosen.identity.model_copy(update={"enabled": False})
    OperatorDecisions(chosen.model_copy(update={"identity": off}), SystemClock()).open()
