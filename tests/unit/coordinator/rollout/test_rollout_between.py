"""What happens between a rollout's decision, its announcement and the devices: nobody falls through."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coordinator.cli.rollout import app
from coordinator.delivery import rollout_service
from coordinator.rollout import releases
from coordinator.rollout.model import Abort, Create
from coordinator.trust.repository import FOLDER
from protocol.bundle import MAX_BUNDLE_BYTES
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.support.coordinator.rollouts import NoSigner, plan
from tests.support.coordinator.routed import PartJobs, Parts
from tests.unit.coordinator.rollout.test_rollout_staged import (
    ACC,
    QUICK,
    Devices,
    bundle,
    config,
    course,
    deliver,
)
from tests.unit.coordinator.trust.test_trust_coordinator import fleet

ONE = {"rollout": {"mode": "manual", "soak_s": 0.0}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)


async def brought(made, file, names="ab", **changes) -> str:
    """A bundle's file is rolled out; its digest."""
    task = tiny_task(count=1, min_devices=1)
    file.write_bytes(bundle(task, content=b"brought"))
    release = releases.take(file, made.app.settings.state_dir, task)
    made.app.storage.rollouts.book.play(
        Create(release=release, plan=plan(canary=f"device:{','.join(names)}", **changes)), 1.8e9
    )
    return release.digests[0]


async def test_a_device_that_comes_before_the_announcement_can_fetch_what_it_is_told(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        devices = Devices(made)
        await devices.say("a")
        await deliver(made, "a")
        await made.phase("done")
        made.app.rollout.link = SimpleNamespace(connected=False)  # nothing is announced from here on
        fits = made.app.deployment.fits
        made.app.rollout.delivery = SimpleNamespace(fits=fits, ensure_bundles=lambda _: None)
        name = await brought(made, tmp_path / "one.bundle", "a")
        await made.until(lambda: course(made).rollout.members)
        assert not made.app.deployment.blobs.has(name)
        await devices.say("a")
        await made.until(lambda: devices.own("a"))
        assert made.app.deployment.blobs.has(name), "it was named to a device, and could not be fetched"


async def test_a_bundle_that_was_collected_by_who_had_looked_before_is_put_back(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        devices = Devices(made)
        await devices.say("a")
        await deliver(made, "a")
        await made.phase("done")
        kept = made.app.deployment.retained_digests()
        name = await brought(made, tmp_path / "one.bundle", "a")
        await made.until(lambda: devices.own("a"))
        made.app.deployment.blobs.collect(kept, 0)
        await made.until(lambda: made.app.deployment.blobs.has(name))


async def test_a_brought_bundle_that_has_rotted_is_not_served(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
        announce, fits = made.app.deployment.announce, made.app.deployment.fits
        made.app.rollout.delivery = SimpleNamespace(
            announce=announce, fits=fits, ensure_bundles=lambda _: None
        )
        name = await brought(made, tmp_path / "one.bundle", "nobody")
        file = made.app.settings.state_dir / releases.FOLDER / name
        file.write_bytes(b"rotten")
        made.app.deployment.ensure_bundles(course(made))
        assert not made.app.deployment.blobs.has(name)
        assert not made.app.deployment.blobs.has(digest(b"rotten"))


async def test_an_abort_and_a_new_rollout_between_two_looks_leave_no_old_pointer(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        devices = Devices(made)
        for name in "ab":
            await devices.say(name)
        await deliver(made, "ab")
        await made.phase("done")
        await brought(made, tmp_path / "one.bundle", "a")
        await made.until(lambda: devices.own("a"))
        book = made.app.storage.rollouts.book
        release = course(made).rollout.release
        book.play(Abort(), 1.8e9)  # no look at the book between the two
        book.play(Create(release=release, plan=plan(canary="device:b")), 1.8e9)
        await made.until(lambda: devices.own("b"))
        await made.until(lambda: devices.own("a")[-1] == b"")


async def test_who_is_revoked_while_it_is_in_a_stage_neither_holds_nor_ends_it(tmp_path) -> None:
    rollout = {**QUICK, "canary": "device:a,b"}
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), rollout=rollout) as made:
        devices = Devices(made)
        for name in "abc":
            await devices.say(name)
        await deliver(made, "abc")
        await made.until(lambda: devices.own("a") and devices.own("b"))
        no = Refused(Reason.QUARANTINED, "revoked")
        barred = made.app.access._barred
        made.app.access._barred = (lambda device: no if device == "b" else None, *barred)
        await devices.tried("a", "committed")
        await made.until(lambda: devices.own("c"))
        assert course(made).rollout.members["b"].barred


async def test_a_routed_device_hears_of_each_decision_also_of_one_that_names_the_same_bundle(
    tmp_path,
) -> None:
    task = tiny_task(count=1, min_devices=1)
    async with bench(tmp_path, task, PartJobs(), Parts(), rollout={**QUICK, "canary": "share:1"}) as made:
        devices = Devices(made)
        await devices.say("a", modalities=ACC)
        await deliver(made, "a")
        await made.until(lambda: devices.own("a"))
        first = devices.pointer("a")
        await devices.tried("a", "committed", modalities=ACC)
        await made.until(lambda: course(made).rollout.cleared)
        last = devices.pointer("a")
        assert last.bundle == first.bundle
        assert last.serial == course(made).stable.serial > first.serial


async def test_rollouts_wait_until_the_pointers_of_the_one_before_are_taken_back(tmp_path) -> None:
    every = {"export": {"every_rounds": 1}}
    async with bench(tmp_path, tiny_task(count=2, min_devices=1), rollout=QUICK, **every) as made:
        devices = Devices(made, a={"site": "barn"})
        for name in "ab":
            await devices.say(name)
        await deliver(made, "ab")
        await made.until(lambda: devices.own("a"))
        await deliver(made, "ab", 2.0)
        await made.phase("done")
        assert course(made).waiting.release.version == 2
        made.link.connected = False
        await devices.tried("a", "rolled_back", "bad")
        await made.until(lambda: course(made).phase == "failed")
        await asyncio.sleep(0.1)
        assert course(made).number == 1
        made.link.connected = True
        await made.until(lambda: course(made).number == 2)
        assert course(made).waiting is None


def test_a_bundle_file_is_read_no_further_than_a_bundle_can_be_long(tmp_path) -> None:
    huge = tmp_path / "huge.bundle"
    with huge.open("wb") as file:
        file.truncate(64 * 1024**3)  # sparse: it takes no room
    with pytest.raises(Refused, match=f"at most {MAX_BUNDLE_BYTES}"):
        releases.take(huge, tmp_path, tiny_task())


async def test_a_coordinator_that_was_started_without_rollouts_is_to_be_restarted_first(tmp_path) -> None:
    file, _ = config(tmp_path, "newest")
    async with bench(tmp_path, tiny_task(count=1, min_devices=1)) as made:
        await Devices(made).say("a")
        await deliver(made, "a")
        await made.phase("done")
        config(tmp_path, "manual")
        error = CliRunner().invoke(app, ["create", "-c", str(file)]).exception
        assert isinstance(error, Misconfigured)
        assert "restart it first" in str(error)
        assert not (tmp_path / "coordinator" / "rollout.sqlite3").exists()


async def test_a_signed_fleet_gets_both_versions_signed_and_after_the_end_one(tmp_path) -> None:
    made_by, _ = fleet(tmp_path / "coordinator" / FOLDER)
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        devices, book = Devices(made), made.app.storage.rollouts.book
        for name in "ab":
            await devices.say(name)
        await deliver(made, "ab")
        await made.phase("done")
        book.play(Create(release=course(made).newest, plan=plan(canary="share:1", soak_s=0.0)), 1.8e9)
        for name in "ab":
            await made.until(lambda one=name: devices.own(one))
            await devices.tried(name, "committed")
        await made.until(lambda: course(made).rollout.cleared)
        stable = course(made).stable.release.digests[0]
        assert stable in made_by.published().targets
        bad = await brought(made, tmp_path / "bad.bundle", "a")
        await made.until(lambda: devices.own("a")[-1] != b"")
        signed = made_by.published().targets
        assert stable in signed
        assert bad in signed
        await devices.tried("a", "rolled_back", "bad")
        await made.until(lambda: course(made).rollout.cleared)
        signed = made_by.published().targets
        assert stable in signed
        assert bad not in signed, "nobody can be made to take it any more"
        assert devices.fleet()[-1].trust is not None


class Slow(NoSigner):
    """The next signature takes its time."""

    def __init__(self) -> None:
        self.slow = threading.Event()

    def vouched(self, pointer, bundles, device=None):
        del bundles, device
        if self.slow.is_set():
            self.slow.clear()
            time.sleep(0.3)
        return pointer


async def test_an_announcement_that_takes_long_is_not_the_last_word_over_a_later_decision(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=1), **ONE) as made:
        devices, deployment = Devices(made), made.app.deployment
        deployment.pointer_signer = slow = Slow()
        for name in "ab":
            await devices.say(name)
        await deliver(made, "ab")
        await made.phase("done")
        book = made.app.storage.rollouts.book
        book.play(Create(release=course(made).newest, plan=plan(canary="share:1", soak_s=0.0)), 1.8e9)
        for name in "ab":
            await made.until(lambda one=name: devices.own(one))
            await devices.tried(name, "committed")
        await made.until(lambda: course(made).rollout.cleared)
        await brought(made, tmp_path / "bad.bundle", "a")
        await made.until(lambda: devices.own("a")[-1] != b"")
        slow.slow.set()
        late = asyncio.create_task(deployment.announce(again=True))  # as at a connect
        await made.until(lambda: not slow.slow.is_set())
        book.play(Abort(), 1.8e9)
        await late
        await made.until(lambda: course(made).rollout.cleared)
        assert devices.fleet()[-1].serial == course(made).stable.serial
        assert devices.own("a")[-1] == b""
