"""The daemon and the operator's decisions: who was revoked is not heard, an approval ends a quarantine."""

import asyncio
from contextlib import closing

import pytest

from coordinator.admission.operator_decisions import OperatorDecisions
from coordinator.identity.http_api import listener
from coordinator.status.prometheus import _Collector
from protocol.enrolment import CA_PATH
from protocol.errors import Misconfigured, Reason
from protocol.topics import Kind
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, settings_for, tiny_task
from tests.support.identity.desk import Client, csr, new_key
from tests.support.network.brokers import HOST, free_port
from tests.support.python import python
from tests.support.services import beside, until


def identity(**more: object) -> dict[str, object]:
    return {"host": HOST, "port": free_port(), **more}


def authority(settings) -> None:
    from coordinator.identity.authority import Authority  # noqa: PLC0415 - as the daemon: only where it is used

    Authority.create(settings.state_dir / "authority", FLEET, ["localhost", HOST])


async def test_a_revoked_device_is_refused_while_the_coordinator_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.admission.operator_decisions.REFRESH_S", 0.05)
    chosen = {"identity": identity()}
    authority(settings_for(tmp_path, 1, **chosen))
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), **chosen) as made:
        admission = made.app.admission
        assert admission._desk is not None
        token = admission._desk.invite("a", 60).token
        await made.online("a", "b")
        await made.phase("collecting")
        office = Client(admission._office, admission._desk)
        answer = await office.post("/v1/enrol", token=token, device="a", csr=csr(new_key()))
        assert answer.status == 200
        assert admission.denial("a") is None
        again = await office.post("/v1/enrol", token=token, device="a", csr=csr(new_key()))
        assert again.status == 403
        assert admission.counts() == (1, {Reason.BAD_INVITE: 1})
        scraped = {m.name: m.samples for m in _Collector(made.app.measured).collect()}
        assert [s.value for s in scraped["lichen_certificates_issued"]] == [1.0]
        assert [s.labels["reason"] for s in scraped["lichen_enrolments_refused"]] == ["bad_invite"]
        admission._desk.book.revoke("a")
        await made.until(lambda: admission.denial("a") is not None)
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        assert [(r.status, r.reason) for r in made.link.receipts("a")][-1] == ("refused", Reason.REVOKED)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, made.app.driver.state.manifest)))
        assert made.link.receipts("b")[-1].status == "accepted"
    with pytest.raises(OSError, match=r"refused|Connect"):
        await office.ask("GET", CA_PATH)


async def test_without_an_authority_nothing_listens_and_everybody_is_let_in(tmp_path) -> None:
    settings = settings_for(tmp_path, 1, identity=identity())
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    admission = OperatorDecisions(settings, SystemClock())
    assert set(admission.services()) == {"admission"}
    assert admission.denial("a") is None
    assert list(settings.state_dir.iterdir()) == []
    admission.close()


async def test_it_can_be_switched_off_and_demanded(tmp_path) -> None:
    for enabled in (False, True):
        settings = settings_for(tmp_path / str(enabled), 1, identity=identity(enabled=enabled))
        if enabled:
            with pytest.raises(Misconfigured, match="lichen coordinator init"):
                OperatorDecisions(settings, SystemClock()).services()
        authority(settings)
        admission = OperatorDecisions(settings, SystemClock())
        assert ("enrolment" in admission.services()) is enabled
        admission.close()


async def test_another_fleets_authority_stops_the_daemon(tmp_path) -> None:
    settings = settings_for(tmp_path, 1, identity=identity())
    authority(settings)
    other = settings.model_copy(update={"fleet": "other"})
    with pytest.raises(Misconfigured, match="is the authority of"):
        OperatorDecisions(other, SystemClock()).services()


async def test_what_was_known_stays_known_while_the_book_cannot_be_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.admission.operator_decisions.REFRESH_S", 0.01)
    settings = settings_for(tmp_path, 1, identity=identity())
    authority(settings)
    admission = OperatorDecisions(settings, SystemClock())
    services = admission.services()
    assert admission._book is not None
    admission._book.revoke("a", unknown=True)
    with closing(admission):
        async with beside(services["admission"], forever=True):
            await until(lambda: admission.denial("a") is not None)
            with monkeypatch.context() as patch:
                patch.setattr("coordinator.storage.engines.shared_sqlite.SharedSqlite.mark", _locked)
                await asyncio.sleep(0.1)
                assert admission.denial("a") is not None


def _locked(_: object) -> tuple[int, int]:
    from protocol.errors import Transient  # noqa: PLC0415 - only here

    raise Transient("database is locked")


def test_a_coordinator_without_an_authority_imports_neither_cryptography_nor_a_web_server() -> None:
    code = (
        "import sys, coordinator.app; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'cryptography', 'starlette', 'uvicorn'}))"
    )
    done = python("-c", code)
    assert done.stdout.strip() == "[]"


def test_the_bounds_of_the_door_leave_room_for_the_daemons_own_files() -> None:
    assert listener.MAX_CONNECTIONS + 256 < 1024, "the usual limit of open files"
