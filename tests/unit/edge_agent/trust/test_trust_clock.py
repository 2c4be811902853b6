"""A coordinator's clock that was ahead: what it signed then, who takes it, who says so, what heals it."""

import json
import threading
import time

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.rounds.worker import RoundWorker
from coordinator.trust.repository import DAY_S, BundleTarget, Repository
from coordinator.trust.signer import PointerSigner
from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import MetadataUpdater
from protocol.errors import Misconfigured, Refused
from protocol.messages import ModelPointer
from protocol.tasks.announcement import MAX_NEXT_ROOTS
from protocol.trust.metadata import draft, unix
from runtime.storage.blob_store import BlobStore
from tests.support.agent.bundle import ref_of
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyJobs, tiny_task
from tests.unit.coordinator.trust.test_trust_coordinator import bundle, fleet
from tests.unit.edge_agent.trust.test_trust_agent import here

AHEAD_S = 300 * DAY_S


class Puller:
    """Pulls from the coordinator's own blobs."""

    def __init__(self, blobs):
        self.blobs = blobs

    async def fetch(self, ref, _timeout_s):
        self.blobs.get(ref.digest)
        return self.blobs.path(ref.digest)

    def forget(self, digest):
        pass


class Site:
    """One coordinator's command line and signing, and devices; each with a clock of its own."""

    def __init__(self, folder):
        self.now = time.time()  # the command line signs roots by the real clock
        self.folder = folder
        self.config = folder / "coordinator.toml"
        self.config.write_text('fleet = "f"\nstate_dir = "state"\ntask = "task.toml"\n')
        self.key = str(folder / "root.pem")
        self.call("init", "--root-key", self.key)
        self.repository = Repository(folder / "state" / "trust")
        self.first = TrustedMetadata.begin(self.repository.newest.read_bytes())
        self.blobs = BlobStore(folder / "blobs")
        self.clock = ManualClock(wall=self.now)
        self.safe = PointerSigner(self.repository, self.blobs, self.clock, "f")

    def call(self, *words):
        result = CliRunner().invoke(app, ["trust", *words, "--config", str(self.config)])
        assert result.exit_code == 0, result.output
        return result.output

    def status(self):
        return json.loads(self.call("status", "--format", "json"))

    def device(self, name, wall=None, *, synchronised=None):
        clock = ManualClock(wall=self.now if wall is None else wall)
        clock.is_synchronised = synchronised
        return MetadataUpdater(
            self.folder / name, self.first, Puller(self.blobs), clock, 1, ("f", name), here
        ), clock

    def pointer(self, number=1):
        one = BundleTarget(task="toy", version=number, ref=ref_of(b"%d" % number))
        said = ModelPointer(task=one.task, version=one.version, bundle=one.ref)
        return self.safe.vouched(said, [one])


async def test_rotate_heals_a_fleet_whose_coordinators_clock_was_ahead(tmp_path):
    site = Site(tmp_path)
    device, clock = site.device("d")
    site.clock.set_wall(site.now + AHEAD_S)
    with capture_logs() as lines:
        await device.require(site.pointer(1))
        site.clock.set_wall(site.now)
        for day in range(1, 20):  # nobody has looked yet: the device goes on, and the coordinator says it
            for one in (site.clock, clock):
                await one.advance(DAY_S)
            assert site.safe.due(), "by a clock that nobody sets"
            await device.require(site.pointer(1 + day))
    assert any(line["event"] == "signed_ahead_of_the_clock" for line in lines)
    assert 279 * DAY_S < device.time().behind_s < 282 * DAY_S
    found = site.status()
    assert found["ahead_s"] > 280 * DAY_S
    assert "days ahead of this machine's clock" in found["bundles"]
    site.call("rotate", "--root-key", site.key)
    assert site.status()["ahead_s"] == 0
    for one in (site.clock, clock):
        one.set_wall(site.now)
    await device.require(site.pointer(20))
    assert device.time().behind_s < 60
    assert device.status()["root"] == 2
    assert abs(unix(device.now.timestamp.said.issued) - site.now) < 60


async def test_a_device_whose_clock_a_time_service_keeps_is_not_taken_ahead(tmp_path):
    site = Site(tmp_path)
    right, _ = site.device("right", synchronised=True)
    late, late_clock = site.device("late", site.now - 3 * DAY_S, synchronised=False)
    await right.require(site.pointer(1))
    before = right.now
    site.clock.set_wall(site.now + AHEAD_S)
    ahead = site.pointer(2)
    with pytest.raises(Refused, match=r"signed 300\.0 days ahead of this device's clock"):
        await right.require(ahead)
    assert right.now == before
    assert "trust rotate" in right.status()["refused"]
    assert "days ahead" not in json.dumps(late.status())
    site.clock.set_wall(site.now)
    site.call("rotate", "--root-key", site.key)
    for device in (right, late):  # one that is three days behind takes the signature's word
        await device.require(site.pointer(3))
        assert device.status()["bundles"] == "are signed"
    late_clock.is_synchronised = True
    with pytest.raises(Refused, match=r"signed 3\.\d days ahead"):
        await late.require(site.pointer(4))


async def test_a_clock_that_is_set_back_by_an_hour_is_no_reason_to_rotate(tmp_path):
    site = Site(tmp_path)
    device, _ = site.device("d", synchronised=True)
    await device.require(site.pointer(1))
    site.clock.set_wall(site.now - 3600)
    await device.require(site.pointer(2))
    assert unix(device.now.timestamp.said.issued) == int(site.now) + 1


async def test_the_status_of_the_coordinator_says_that_its_signatures_are_ahead(tmp_path):
    folder = tmp_path / "coordinator"
    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        repository, _ = fleet(folder / "trust")
        config = tmp_path / "coordinator.toml"
        settings = made.app.settings
        config.write_text(f'fleet = "{settings.fleet}"\nstate_dir = "{folder}"\ntask = "{settings.task}"\n')
        repository.publish([bundle()], time.time() + AHEAD_S)
        found = CliRunner().invoke(app, ["status", "--why", "--config", str(config)])
    assert "signatures: what devices get was signed" in " ".join(found.output.split()), found.output


# -- vouchers and the collection of blobs


def test_vouchers_that_were_collected_are_put_again(tmp_path):
    repository, _ = fleet(tmp_path / "trust")
    blobs = BlobStore(tmp_path / "blobs")
    safe = PointerSigner(repository, blobs, ManualClock(wall=time.time()), "f")
    kept = safe.kept()  # as who tidies up reads it, before a thread signs
    said = safe.vouched(ModelPointer(task="toy", version=1, bundle=bundle().ref), [bundle()])
    blobs.collect(kept, 0)
    again = safe.vouched(ModelPointer(task="toy", version=1, bundle=bundle().ref), [bundle()])
    assert again.trust == said.trust
    assert all(blobs.has(digest) for digest in safe.kept())


async def test_nothing_is_signed_while_blobs_of_old_versions_go(tmp_path, monkeypatch):
    fleet(tmp_path / "coordinator" / "trust")
    made_meanwhile = threading.Event()
    tidy = RoundWorker._tidy
    monkeypatch.setattr(RoundWorker, "_tidy", lambda *_: None)  # the worker's own call may still be under way

    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        collect, threads = made.app.round_worker.registry.collect, []

        def sign():
            made.app.pointer_signer.vouched(
                ModelPointer(task="toy", version=1, bundle=bundle().ref), [bundle()]
            )
            made_meanwhile.set()

        def collecting(*args):
            threads.append(threading.Thread(target=sign))
            threads[0].start()
            assert not made_meanwhile.wait(0.3), "it was signed while blobs were removed"
            return collect(*args)

        monkeypatch.setattr(made.app.round_worker.registry, "collect", collecting)
        tidy(made.app.round_worker, 1)
        assert threads, "blobs were not collected"
        threads[0].join()
        blobs = BlobStore(tmp_path / "coordinator" / "blobs")
        assert made.app.pointer_signer.kept()
        assert all(blobs.has(digest) for digest in made.app.pointer_signer.kept())


# -- ever more roots


def test_the_root_that_devices_could_not_follow_any_more_is_not_made(tmp_path):
    repository, (key,) = fleet(tmp_path / "state" / "trust")
    config = tmp_path / "coordinator.toml"
    config.write_text('fleet = "f"\nstate_dir = "state"\ntask = "task.toml"\n')
    key.save(tmp_path / "root.pem")
    said = {name: repository.root().model_dump(by_alias=True)[name] for name in ("keys", "roles")}
    roots = [
        key.signs(draft("root", number, time.time(), DAY_S, said)).encode()
        for number in range(2, MAX_NEXT_ROOTS + 3)
    ]
    for number, data in enumerate(roots[:-1], 2):
        (tmp_path / "state" / "trust" / "roots" / f"{number}.json").write_bytes(data)
    repository.keep_root(roots[-2])
    call = ["trust", "rotate", "--root-key", str(tmp_path / "root.pem"), "--config", str(config)]
    refused = CliRunner().invoke(app, call)
    assert isinstance(refused.exception, Misconfigured)
    assert "at most 256 roots" in str(refused.exception)
    assert len(list((tmp_path / "state" / "trust" / "keys").iterdir())) == 1, "no key is left behind"
    repository.keep_root(roots[-1])  # made by hand
    safe = PointerSigner(repository, BlobStore(tmp_path / "blobs"), ManualClock(wall=time.time()), "f")
    with pytest.raises(Misconfigured, match="at most 256 roots"):
        safe.vouched(ModelPointer(task="toy", version=1, bundle=bundle().ref), [bundle()])
