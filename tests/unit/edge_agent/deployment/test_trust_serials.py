"""Serials: nobody who only reports moves them, who has counted goes on, and a new signer begins anew."""

import time

import pytest

from coordinator.delivery import rollout_service
from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import Abort, Begun, Create, RolloutState
from coordinator.trust import root_ceremony
from coordinator.trust.repository import DAY_S
from edge_agent.deployment.events import (
    DeploymentPhase,
    DeploymentStatus,
    FetchBundle,
    Fetched,
    Loaded,
    Pointed,
)
from edge_agent.deployment.record import DeploymentRecord, RejectedBundle
from edge_agent.deployment.state_machine import apply
from protocol import messages
from protocol.errors import Refused
from protocol.messages import ModelPointer
from protocol.trust.decisions import read_decision, require_for
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, tiny_task
from tests.support.coordinator.rollouts import NOW, Fleet, plan, release, report
from tests.support.coordinator.routed import PartJobs, Parts
from tests.support.coordinator.trial_runner import MODEL
from tests.unit.coordinator.rollout.test_rollout_staged import ACC, GYRO, QUICK, Devices, course, deliver
from tests.unit.edge_agent.deployment.test_deploy_machine import RULES, A, B, C, batch, kept, pointer, words
from tests.unit.edge_agent.trust.test_trust_daemon import believed
from tests.unit.edge_agent.trust.test_trust_daemon import fleet as rooted

HIGHEST = 2**31 - 1


def play(*events, record=None):
    status, commands = DeploymentStatus(record or DeploymentRecord()), ()
    for event in events:
        status, commands = apply(status, event)
    return status, commands


# -- on the device


def test_a_decision_without_a_serial_is_an_old_one_where_decisions_are_signed():
    record = DeploymentRecord(committed=kept(A, 1, 5, epoch=1), serial=5, epoch=1)
    newer = pointer(B, 9)
    status, commands = play(Pointed(newer, 1), record=record)
    assert (status.record, "decision 0 is out of date" in words(commands)) == (record, True)
    open_ = DeploymentRecord(committed=kept(A, 1, 5), serial=5)
    assert play(Pointed(newer, None), record=open_)[1] == (FetchBundle(newer),), "as ever, where nothing is"
    counted_none = DeploymentRecord(committed=kept(A, 1, epoch=1), epoch=1)
    assert play(Pointed(newer, 1), record=counted_none)[1] == (FetchBundle(newer),), (
        "who counts none goes by versions"
    )
    assert play(Pointed(newer, 2), record=record)[1] == (FetchBundle(newer),), (
        "and so may who signs from now on"
    )


def test_a_replayed_decision_without_a_serial_ends_no_trial():
    trial = play(
        Fetched(kept(B, 2, 7, epoch=1), RULES),
        Loaded(MODEL),
        record=DeploymentRecord(committed=kept(A, epoch=1), epoch=1),
    )[0]
    after, _ = apply(trial, Pointed(pointer(A, 1), 1))
    assert after is trial


def test_a_first_model_that_failed_is_not_tried_again_for_the_decision_that_brought_it():
    status, _ = play(Fetched(kept(A, 1, 5, epoch=1), RULES), Loaded(MODEL), batch(A, error="it died"))
    assert (status.phase, status.record.epoch) == (DeploymentPhase.NONE, 1)
    assert apply(status, Pointed(pointer(A, 1, 5), 1))[1] != (FetchBundle(pointer(A, 1, 5)),)
    assert "out of date" in words(apply(status, Pointed(pointer(B, 2, 4), 1))[1]), "replayed"
    assert apply(status, Pointed(pointer(A, 1, 6), 1))[1] == (FetchBundle(pointer(A, 1, 6)),), "a later one"


def test_what_failed_under_a_new_signer_stays_failed_though_the_model_before_is_the_old_ones():
    old = DeploymentRecord(
        committed=kept(A, 1, HIGHEST, epoch=1),
        serial=HIGHEST,
        bad=(RejectedBundle(digest=B, serial=HIGHEST),),
    )
    status, commands = play(Pointed(pointer(B, 2, 7), 2), record=old)
    assert commands == (FetchBundle(pointer(B, 2, 7)),), "the new signer's first"
    for event in (Fetched(kept(B, 2, 7, epoch=2), RULES), Loaded(MODEL), batch(B, error="it died")):
        status, _ = apply(status, event)
    assert (status.record.committed.epoch, status.record.epoch, status.record.serial) == (1, 2, 7)
    assert apply(status, Pointed(pointer(B, 2, 7), 2))[1] != (FetchBundle(pointer(B, 2, 7)),)
    assert "out of date" in words(apply(status, Pointed(pointer(C, 3, 6), 2))[1])


def test_a_book_of_an_older_release_begins_with_the_epoch_of_what_it_runs():
    record = DeploymentRecord.model_validate_json(
        DeploymentRecord(committed=kept(A, 1, 5, epoch=1), serial=5).model_dump_json(exclude={"epoch"})
    )
    assert "out of date" in words(play(Pointed(pointer(B, 2, 4), 1), record=record)[1])
    status, _ = play(Pointed(pointer(A, 1, 6), 1), record=record)
    assert (status.record.serial, status.record.epoch) == (6, 1)


# -- at the coordinator


def test_what_a_member_reports_moves_no_serial():
    fleet = Fleet("a", "b")
    fleet.play(Begun(mode="manual", release=release(1)))
    fleet.play(Create(release=release(2), plan=plan()))
    fleet.tick()
    before = fleet.course.serial
    for phase in ("trial", "committed", "refused", "rolled_back"):
        for one in (release(1), release(2), release(3)):
            told = report(one, HIGHEST, phase)
            fleet.said = {name: DeviceReport(online=True, model=told.bundle, trial=told) for name in "ab"}
            fleet.tick()
    if fleet.course.open is not None:
        fleet.play(Abort())
    assert before < fleet.course.serial < before + 10


def test_a_book_that_was_lost_goes_on_by_the_clock_alone():
    serial = RolloutState().next_serial(NOW)
    assert serial == (NOW - 1_577_836_800) // 60
    assert RolloutState(serial=serial + 99).next_serial(NOW) == serial + 100, (
        "faster than the clock for a while"
    )
    assert RolloutState(serial=serial).next_serial(0.0) == serial + 1, "the clock was set back"


async def test_who_has_counted_goes_on_counting_also_where_the_book_was_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)
    one = tiny_task(count=1, min_devices=1)
    async with bench(tmp_path, one, rollout={"mode": "manual"}) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
    for file in (tmp_path / "coordinator").glob("rollout.sqlite3*"):
        file.unlink()
    async with bench(tmp_path, one, rollout={"mode": "newest"}) as made:
        await made.app.announcer.publish_all()
        found = Devices(made).fleet()[-1]
        assert (found.version, found.serial > 0) == (1, True), "0 would be out of date to every device"


@pytest.mark.parametrize("routed", [False, True])
async def test_each_device_gets_decisions_that_were_signed_for_it(tmp_path, monkeypatch, routed):
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)
    repository, key = rooted(tmp_path)
    blobs = BlobStore(tmp_path / "coordinator" / "blobs")
    parts = (PartJobs(), Parts()) if routed else ()
    settings = {
        "rollout": {**QUICK, "trial": {"windows": 5, "max_drift": 0.3}},
        "export": {"every_rounds": 1},
    }
    async with bench(
        tmp_path, tiny_task(count=1, min_devices=2), *parts, trust={"again_hours": 0.001}, **settings
    ) as made:
        devices = Devices(made, a={"site": "barn"})
        kinds = {"a": ACC, "b": GYRO}
        for name, has in kinds.items():
            await devices.say(name, modalities=has)
        await deliver(made, kinds)
        await made.until(lambda: devices.own("a"))

        def judged(pointer: ModelPointer, name: str, version: int) -> None:
            known = believed(repository, blobs, pointer)
            said, envelope = read_decision(pointer.decision)
            known.root.said.require(envelope, "targets")
            require_for(said, pointer, FLEET, name)
            assert said.root == known.root.said.version == version

        first = messages.decode(devices.own("a")[-1], ModelPointer)
        judged(first, "a", 1)
        assert (first.trial.windows, first.serial > 0) == (5, True)
        with pytest.raises(Refused, match="for device 'a', and this is 'b'"):
            judged(first, "b", 1)
        await devices.tried("a", "committed", modalities=ACC)
        await made.until(lambda: devices.own("b"))
        judged(messages.decode(devices.own("b")[-1], ModelPointer), "b", 1)
        root_ceremony.rotate(repository, [key], None, None, 365 * DAY_S, time.time())
        await made.until(lambda: messages.decode(devices.own("b")[-1], ModelPointer).trust.roots)
        again = messages.decode(devices.own("b")[-1], ModelPointer)
        judged(again, "b", 2)
        await devices.tried("b", "committed", modalities=GYRO)
        await made.until(lambda: course(made).phase == "complete")
        if not routed:
            await made.until(lambda: devices.fleet() and devices.fleet()[-1].serial > again.serial)
            for name in ("a", "anybody"):
                judged(devices.fleet()[-1], name, 2)
