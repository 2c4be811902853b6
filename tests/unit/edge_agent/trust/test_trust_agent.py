"""What a device does with pointers and their vouchers: pulled, verified, kept; and what it says."""

import asyncio

import pytest

from edge_agent.identity.files import folder_of
from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import FILE, MetadataUpdater, begin
from edge_agent.trust.verify_process import VerifyResult, step, step_in_child
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import BlobRef, Vouchers
from protocol.trust.metadata import draft
from tests.support.agent.bundle import bundle, ref_of
from tests.support.agent.data import toy_task
from tests.support.clock import ManualClock
from tests.support.identity.trust import DAY_S, ME, NOW, Keys, decided, release, root
from tests.support.services import until
from tests.unit.edge_agent.deployment.test_agent_deploy import Shelf, device, passed

EXCHANGED = Keys(online={"timestamp": (13,), "snapshot": (14,), "targets": (15,)})


async def here(trusted, role, data, now):
    """As a child process would, without its start."""
    return step(trusted, role, data, now)


class Desk:
    """A device's trust, and the shelf that its blobs come from."""

    def __init__(self, folder, first=None, wall=NOW):
        folder.mkdir(exist_ok=True)
        self.folder, self.shelf, self.clock = folder, Shelf(folder), ManualClock(wall=wall)
        self.first = TrustedMetadata.begin(first or root())
        self.start()

    def start(self):
        self.trust = MetadataUpdater(self.folder / "trust", self.first, self.shelf, self.clock, 1, ME, here)
        return self

    def put(self, one, *roots, **by):
        return vouched(self.shelf, one, *roots, **by)


def vouched(shelf, one, *roots, keys=None, pointer=None):
    """With the decision; ``keys``: whose, where they are not the first root's."""
    refs = {role: ref_of(shelf.put(getattr(one, role))) for role in ("timestamp", "snapshot", "targets")}
    trust = Vouchers(roots=tuple(ref_of(shelf.put(data)) for data in roots), **refs)
    said = decided(pointer or one.pointer, keys=keys, root=1 + len(roots))
    return said.model_copy(update={"trust": trust})


async def test_what_vouches_is_pulled_once_and_kept(tmp_path):
    desk = Desk(tmp_path)
    pointer = desk.put(release(1))
    await desk.trust.require(pointer)
    assert len(desk.shelf.fetched) == 3
    await desk.trust.require(pointer)
    desk.start()
    await desk.trust.require(pointer)
    assert len(desk.shelf.fetched) == 3
    assert sorted(desk.shelf.forgotten) == sorted(desk.shelf.fetched)
    assert desk.trust.status()["bundles"] == "are signed"


async def test_a_restart_remembers_what_was_known(tmp_path):
    desk = Desk(tmp_path)
    await desk.trust.require(desk.put(release(2)))
    with pytest.raises(Refused, match="rolled_back: timestamp 1, but 2 is known already"):
        await desk.start().trust.require(desk.put(release(1)))
    assert "rolled_back" in desk.trust.status()["refused"]


async def test_roots_are_followed_one_after_the_other(tmp_path):
    desk = Desk(tmp_path)
    second, third = root(EXCHANGED, 2, by=(1,)), root(EXCHANGED, 3, by=(1,))
    await desk.trust.require(desk.put(release(1, keys=EXCHANGED), second, third, keys=EXCHANGED))
    assert (desk.trust.status()["root"], desk.trust.epoch) == (3, 2)
    with pytest.raises(Refused, match="untrusted: timestamp"):
        await desk.trust.require(desk.put(release(5), second, third, keys=EXCHANGED))


async def test_another_first_root_begins_anew(tmp_path):
    desk = Desk(tmp_path)
    await desk.trust.require(desk.put(release(9)))
    other = Desk(tmp_path, root(Keys(root=(8,))))
    await other.trust.require(other.put(release(1)))


async def test_damaged_memory_begins_anew(tmp_path):
    desk = Desk(tmp_path)
    await desk.trust.require(desk.put(release(2)))
    (tmp_path / "trust" / FILE).write_bytes(b"rotten")
    await desk.start().trust.require(desk.put(release(2)))


async def test_an_unsigned_pointer_is_refused_where_there_is_a_root(tmp_path):
    with pytest.raises(Refused, match="untrusted: unsigned"):
        await Desk(tmp_path).trust.require(release(1).pointer)


async def test_without_a_root_all_is_taken_and_the_status_says_so(tmp_path):
    desk = Desk(tmp_path)
    open_ = MetadataUpdater(tmp_path, None, desk.shelf, desk.clock, 1, ME)
    await open_.require(release(1).pointer)
    await open_.require(desk.put(release(1, targets=(9,))))
    assert "unsigned" in open_.status()["bundles"]
    assert desk.shelf.fetched == []


async def test_what_is_announced_as_too_large_is_not_pulled(tmp_path):
    huge = BlobRef(digest="0" * 64, size=400 * 1024 * 1024)
    for role in ("timestamp", "snapshot", "targets"):
        desk = Desk(tmp_path / role)
        pointer = desk.put(release(1))
        trust = pointer.trust.model_copy(update={role: huge})
        with pytest.raises(Refused) as caught:
            await desk.trust.require(pointer.model_copy(update={"trust": trust}))
        assert caught.value.reason is Reason.TOO_LARGE
        assert huge.digest not in desk.shelf.fetched


async def test_a_piece_that_does_not_come_is_waited_for(tmp_path):
    desk = Desk(tmp_path)
    pointer = desk.put(release(1))
    (tmp_path / pointer.trust.snapshot.digest).unlink()
    with pytest.raises(Transient):
        await desk.trust.require(pointer)
    await desk.trust.require(desk.put(release(1)))


async def test_an_old_clock_is_counted_on_from_the_last_signature(tmp_path):
    desk = Desk(tmp_path, wall=0.0)
    pointer = desk.put(release(1))
    await desk.trust.require(pointer)
    assert desk.trust.time().now == NOW
    assert "behind" in desk.trust.status()["clock"]
    await desk.clock.advance(8 * DAY_S)
    with pytest.raises(Refused, match="expired: timestamp"):
        await desk.trust.require(pointer)
    assert "expired" in desk.trust.status()["bundles"]


async def test_a_clock_that_was_ahead_is_forgiven_when_it_is_set(tmp_path):
    desk = Desk(tmp_path, wall=NOW + 1000 * DAY_S)
    pointer = desk.put(release(1))
    with pytest.raises(Refused, match="expired"):
        await desk.trust.require(pointer)
    desk.clock = ManualClock(wall=NOW)
    await desk.start().trust.require(pointer)


def test_the_first_root_is_that_of_the_file_then_that_of_the_enrolment(tmp_path):
    assert begin(tmp_path, None) is None
    folder = folder_of(tmp_path)
    folder.make()
    folder.root.write_bytes(root())
    assert begin(tmp_path, None).root.data == root()
    other = tmp_path / "other.json"
    other.write_bytes(root(version=3))
    assert begin(tmp_path, other).root.said.version == 3
    other.write_bytes(b"{}")
    for wrong in (other, tmp_path / "missing.json"):
        with pytest.raises(Misconfigured, match="trust_file"):
            begin(tmp_path, wrong)


# -- in a process of its own


@pytest.mark.long
async def test_a_child_process_says_the_same():
    trusted, one = TrustedMetadata.begin(root(), verified=False), release(1)
    for role in ("timestamp", "snapshot", "targets"):
        data = getattr(one, role)
        child = await step_in_child(trusted, role, data, NOW)
        assert child == step(trusted, role, data, NOW)
        trusted = child
    with pytest.raises(Refused, match="rolled_back: root 3 does not follow root 1"):
        await step_in_child(trusted, "root", root(version=3), NOW)
    with pytest.raises(Refused, match="malformed"):
        await step_in_child(trusted, "root", b"\xff", NOW)


async def test_a_first_root_that_is_not_signed_vouches_for_nothing():
    unsigned = draft("root", 1, NOW - DAY_S, 9 * DAY_S, Keys().root_said()).encode()
    with pytest.raises(Refused, match="untrusted: root"):
        await step_in_child(
            TrustedMetadata.begin(unsigned, verified=False), "timestamp", release(1).timestamp, NOW
        )


async def test_a_child_that_dies_is_tried_again(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Transient, match="ended with 1"):
        await step_in_child(TrustedMetadata.begin(root()), "timestamp", release(1).timestamp, NOW)
    monkeypatch.setattr("sys.executable", "/nowhere")
    with pytest.raises(Transient, match="verifying"):
        await step_in_child(TrustedMetadata.begin(root()), "timestamp", release(1).timestamp, NOW)
    assert VerifyResult().kept is None


# -- as a part of deploying


def signed_bundle(version, number=None, **keys):
    return release(number or version, bundle(toy_task(), version), version=version, **keys)


@pytest.mark.long
async def test_a_device_with_a_root_runs_what_is_signed_and_nothing_else(tmp_path):
    first = TrustedMetadata.begin(root())
    async with device(tmp_path, first=first, trust_clock=ManualClock(wall=NOW)) as deployment:
        one, forged = signed_bundle(1), signed_bundle(2, targets=(9,))
        for data in (one.bundle, forged.bundle):
            deployment.shelf.put(data)
        deployment.offer(vouched(deployment.shelf, one))
        await passed(deployment, 1)
        assert deployment.record.committed.epoch == 1
        signed_wrong = vouched(deployment.shelf, forged)
        for bad, words in ((forged.pointer, "unsigned"), (signed_wrong, "targets: 0 of")):
            deployment.last_refusal = ""
            deployment.offer(bad)
            await until(lambda: deployment.last_refusal, 20)
            assert words in deployment.last_refusal
        assert deployment.inference.model.manifest.version == 1
        assert forged.pointer.bundle.digest not in deployment.shelf.fetched, "not even pulled"
        # a good bundle that somebody announced with bad vouchers is taken with good ones
        deployment.offer(vouched(deployment.shelf, signed_bundle(2, 3)))
        await passed(deployment, 2)


@pytest.mark.long
async def test_versions_may_fall_only_where_keys_were_exchanged(tmp_path):
    first = TrustedMetadata.begin(root())
    async with device(tmp_path, first=first, trust_clock=ManualClock(wall=NOW)) as deployment:
        shelf = deployment.shelf
        for version in (1, 7):
            shelf.put(bundle(toy_task(), version))
        deployment.offer(vouched(shelf, signed_bundle(7)))
        await passed(deployment, 7)
        deployment.offer(vouched(shelf, signed_bundle(1, 8)))
        await until(lambda: deployment.last_refusal, 20)
        assert "older than version 7" in deployment.last_refusal
        exchanged = root(EXCHANGED, 2, by=(1,))
        deployment.offer(vouched(shelf, signed_bundle(1, keys=EXCHANGED), exchanged, keys=EXCHANGED))
        await passed(deployment, 1)
        assert deployment.record.committed.epoch == 2


@pytest.mark.long
async def test_that_a_running_model_is_signed_no_more_is_noticed_and_it_runs_on(tmp_path):
    clock = ManualClock(wall=NOW)
    async with device(tmp_path, first=TrustedMetadata.begin(root()), trust_clock=clock) as deployment:
        one = signed_bundle(1)
        deployment.shelf.put(one.bundle)
        deployment.offer(vouched(deployment.shelf, one))
        await passed(deployment, 1)
        await clock.advance(8 * DAY_S)
        deployment.offer(vouched(deployment.shelf, one))
        await until(lambda: "expired" in deployment.why, 20)
        assert deployment.inference.model.manifest.version == 1
        fresh = signed_bundle(1, 2, issued=NOW + 8 * DAY_S)
        deployment.offer(vouched(deployment.shelf, fresh))
        await until(lambda: "expired" not in deployment._trust.status()["bundles"], 20)
        await asyncio.sleep(0)
