"""The coordinator's daemon with a root: what it announces is vouched for, by one bundle or by route."""

import time

import pytest

from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import DAY_S, Repository
from edge_agent.trust.trusted_metadata import TrustedMetadata
from protocol import messages
from protocol.errors import Misconfigured
from protocol.messages import ModalityState, ModelPointer
from protocol.topics import Kind, broadcast_topic
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, TinyJobs, frame, header, tiny_task
from tests.support.coordinator.routed import PartJobs, Parts


def fleet(folder):
    repository, key = Repository(folder / "coordinator" / "trust"), Key.new()
    root_ceremony.init(repository, [key], 1, 365 * DAY_S, time.time())
    return repository, key


def believed(repository, blobs, pointer):
    now = time.time()
    known = TrustedMetadata.begin(repository.roots()[0])
    for ref in pointer.trust.roots:
        known = known.with_root(blobs.get(ref.digest))
    known = known.with_timestamp(blobs.get(pointer.trust.timestamp.digest), now)
    known = known.with_snapshot(blobs.get(pointer.trust.snapshot.digest), now)
    known = known.with_targets(blobs.get(pointer.trust.targets.digest), now)
    known.require(pointer, now)
    return known


async def test_the_last_version_is_announced_with_what_vouches_for_it(tmp_path) -> None:
    repository, key = fleet(tmp_path)

    def said(made) -> list[ModelPointer]:
        topic = broadcast_topic(FLEET, Kind.FLEET_MODEL)
        return [messages.decode(p, ModelPointer) for t, p, _ in made.link.sent if t == topic]

    async with bench(tmp_path, tiny_task(count=1), TinyJobs(), trust={"again_hours": 0.001}) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.until(lambda: said(made))
        blobs = BlobStore(tmp_path / "coordinator" / "blobs")
        believed(repository, blobs, said(made)[0])
        assert {said(made)[-1].trust.targets.digest, said(made)[-1].bundle.digest} <= set(
            made.app.deployment.retained_digests()
        )
        root_ceremony.rotate(repository, [key], None, None, 365 * DAY_S, time.time())
        await made.until(lambda: said(made)[-1].trust.roots)  # every 3.6 s here: signed anew by itself
        assert believed(repository, blobs, said(made)[-1]).root.said.version == 2


async def test_each_route_has_its_bundle_and_one_list_vouches_for_all(tmp_path) -> None:
    repository, _ = fleet(tmp_path)
    task = tiny_task(count=1, min_devices=2, devices_per_round=2, selection="bandit")
    async with bench(tmp_path, task, PartJobs(), Parts()) as made:
        await made.online("a", modalities={"acc": ModalityState()})
        await made.online("g", modalities={"gyro": ModalityState()})
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        for name in ("a", "g"):
            await made.give(name, Kind.UPDATE, frame(header(name, 1, base)))
        await made.until(lambda: all(made.link.to(name, Kind.MODEL) for name in ("a", "g")))
        blobs = BlobStore(tmp_path / "coordinator" / "blobs")
        pointers = [made.link.to(name, Kind.MODEL)[-1] for name in ("a", "g")]
        assert len({one.bundle.digest for one in pointers}) == 2
        for one in pointers:
            assert len(believed(repository, blobs, one).targets.said.targets) == 2


async def test_a_coordinator_whose_online_key_is_gone_does_not_start(tmp_path) -> None:
    repository, _ = fleet(tmp_path)
    repository.key_file(repository.online().public.keyid).unlink()
    with pytest.raises(Misconfigured, match="no such key file"):
        async with bench(tmp_path, tiny_task(count=1)):
            pass
