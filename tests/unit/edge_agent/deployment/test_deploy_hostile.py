"""Pointers that somebody forged, disks that fail at the wrong moment: the working model stays."""

import asyncio
import errno
import json
from functools import partial
from pathlib import Path

import pytest

from edge_agent.deployment import bundle_store
from edge_agent.deployment.announced_pointers import MAX_REFUSED
from edge_agent.deployment.events import (
    DeploymentPhase,
    DeploymentStatus,
    FetchBundle,
    Fetched,
    Loaded,
    Pointed,
)
from edge_agent.deployment.record import DeploymentRecord
from edge_agent.deployment.state_machine import apply
from edge_agent.deployment.transitions import signer_changed
from protocol.base import Count
from protocol.errors import Transient
from protocol.messages import ModelPointer
from tests.support.agent.bundle import ref_of
from tests.support.coordinator.trial_device import Device, living
from tests.support.coordinator.trial_runner import MODEL
from tests.support.services import until
from tests.unit.edge_agent.deployment.test_deploy_machine import RULES, A, B, C, batch, kept, pointer
from tests.unit.edge_agent.deployment.test_deploy_service import commit, folders

HIGHEST = next(m.le for m in Count.__metadata__[0].metadata if hasattr(m, "le"))


@pytest.fixture
def make(tmp_path):
    return partial(Device, tmp_path / "state", tmp_path / "shelf")


@pytest.mark.parametrize("again", [A, B], ids=["same bundle", "another"])
def test_a_forged_serial_blocks_until_the_root_exchanges_the_key_and_no_longer(again: str) -> None:
    running = DeploymentStatus(DeploymentRecord(committed=kept(A, 1, 5, epoch=1), serial=5))
    forged, _ = apply(running, Pointed(pointer(A, 1, HIGHEST), 1))
    assert forged.record.serial == HIGHEST, "whoever can publish can say so of what is signed"
    assert forged.record.committed.digest == A, "and no more"
    assert apply(forged, Pointed(pointer(B, 2, 7), 1))[1] != (FetchBundle(pointer(B, 2, 7)),)
    # The same decisions, signed by others: docs/trust.md.
    if again == A:
        status, _ = apply(forged, Pointed(pointer(A, 1, 7), 2))
    else:
        assert apply(forged, Pointed(pointer(B, 2, 7), 2))[1] == (FetchBundle(pointer(B, 2, 7)),)
        status = forged
        for event in (Fetched(kept(B, 2, 7, epoch=2), RULES), Loaded(MODEL), batch(B, 4)):
            status, _ = apply(status, event)
    assert (status.phase, status.record.serial) == (DeploymentPhase.COMMITTED, 7)
    assert not signer_changed(status.record, 2)
    assert apply(status, Pointed(pointer(C, 3, 8), 2))[1] == (FetchBundle(pointer(C, 3, 8)),)
    assert apply(status, Pointed(pointer(C, 3, 6), 2))[1] != (FetchBundle(pointer(C, 3, 6)),), (
        "they count again"
    )


def test_a_bundle_that_was_forged_to_be_bad_is_tried_again_when_the_key_was_exchanged() -> None:
    status = DeploymentStatus(DeploymentRecord(committed=kept(A, 1, 5, epoch=1), serial=5))
    for event in (Fetched(kept(B, 2, HIGHEST, epoch=1), RULES), Loaded(MODEL), batch(B, error="it died")):
        status, _ = apply(status, event)
    again = pointer(B, 2, 7)
    assert status.record.failed(B, 7)
    assert apply(status, Pointed(again, 1))[1] != (FetchBundle(again),)
    assert apply(status, Pointed(again, 2))[1] == (FetchBundle(again),)
    other, _ = apply(status, Pointed(pointer(A, 1, 6), 2))
    assert apply(other, Pointed(again, 2))[1] == (FetchBundle(again),), "marks begin anew as well"


async def test_a_bundle_that_is_here_is_not_taken_under_another_version(make):
    async with living(make) as device:
        first = await commit(device, 1)
        await commit(device, 2)
        data = (device.shelf.folder / first).read_bytes()
        said = ModelPointer(task="toy", version=999, bundle=ref_of(data), serial=9)
        device.deployment.offer(said)
        await until(lambda: device.deployment.report().phase == "refused", 20)
        assert "is version 1, announced as 999" in device.deployment.report().why
        assert device.running == 2


async def test_pointers_without_end_take_no_memory(make):
    async with living(make) as device:
        await commit(device, 1)
        deployment = device.deployment
        for serial in range(1, MAX_REFUSED + 10):
            device.work.modalities = ("another",)  # what comes fits no more
            device.point(2, serial=serial)
            await until(lambda: deployment.report().serial == serial)  # noqa: B023 - waited for
        assert len(deployment._announced.refused) == MAX_REFUSED
        assert device.running == 1


async def test_a_model_that_cannot_be_read_just_now_is_not_thrown_away(make, monkeypatch):
    async with living(make) as device:
        first = await commit(device, 1)
    read, left = Path.read_bytes, [4]

    def crowded(path):
        if path.name == "model.onnx" and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", crowded)
    monkeypatch.setattr("edge_agent.deployment.service._RETRY_S", 0.01)
    async with living(make) as device:
        await device.runs(1)
        assert not left[0]
        assert device.record.committed.digest == first
        assert device.shelf.fetched == []


@pytest.mark.parametrize("changes", [{"format": 3}, {"trial": {"digest": "?"}}, {"bad": 7}, {"report": []}])
async def test_a_book_that_is_read_in_part_keeps_the_model_that_runs(make, changes):
    async with living(make) as device:
        first = await commit(device, 1)
    record = device.folder / "current.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    async with living(make) as device:
        await device.runs(1)
        assert (device.record.committed.digest, device.shelf.fetched) == (first, [])


async def test_a_book_that_cannot_be_read_just_now_is_not_written_over(make, monkeypatch):
    async with living(make) as device:
        await commit(device, 1)
    there = (device.folder / "current.json").read_bytes()

    def closed(path):
        raise OSError(errno.EMFILE, f"Too many open files: {path}")

    monkeypatch.setattr(Path, "read_bytes", closed)
    with pytest.raises(Transient, match="Too many open files"):
        make()
    monkeypatch.undo()
    assert (device.folder / "current.json").read_bytes() == there


async def test_an_orderly_end_before_anything_was_loaded_takes_no_start_back(make):
    async with living(make) as device:
        await commit(device, 1)
        device.point(2)
        await device.runs(2)
        await device.written()  # and then the power goes
    for starts in (1, 2):
        async with living(make) as device:
            await device.runs(2)
            assert device.record.trial.starts == starts
    early = make()
    early.work = None
    async with living(lambda: early):
        await asyncio.sleep(0.05)
        await early.deployment.executor.stop()
    assert make().record.trial.starts == 2


async def test_a_bundle_for_which_there_is_no_room_leaves_the_room_to_others(make, monkeypatch):
    async with living(make) as device:
        await commit(device, 1)
        write, full = bundle_store.write_atomic, [True]

        def no_room(path, data):
            if full[0] and path.name == "manifest.json":
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, data)

        monkeypatch.setattr(bundle_store, "write_atomic", no_room)
        device.point(2)
        await until(lambda: "is full" in device.deployment.why, 20)
        assert len(folders(device)) == 1
        assert device.running == 1


async def test_a_bundle_that_came_too_late_is_removed(make):
    async with living(make) as device:
        await commit(device, 1)
        device.shelf.gate = asyncio.Event()
        device.point(2)
        await until(lambda: len(device.shelf.fetched) == 2)
        device.point(1)
        device.shelf.gate.set()
        await until(lambda: "version 1 runs" in device.deployment.why, 20)
        await until(lambda: len(folders(device)) == 1, 20)
