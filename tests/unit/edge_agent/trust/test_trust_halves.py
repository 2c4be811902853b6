"""The coordinator's daemon with a root: its task and offers, judged by a device's verifier."""

import time

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.storage.database import Database
from coordinator.trust import root_ceremony
from coordinator.trust.signer import PointerSigner
from coordinator.trust.work_signer import META, WorkSigner
from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import MetadataUpdater
from edge_agent.trust.work_verifier import WorkVerifier
from protocol import messages
from protocol.errors import Refused
from protocol.messages import Offer, decode, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Kind, broadcast_topic
from protocol.trust.signed_work import SignedOffer, SignedTask, read_signed
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, TinyJobs, tiny_task
from tests.unit.coordinator.trust.test_trust_coordinator import YEAR_S, fleet
from tests.unit.edge_agent.trust.test_trust_agent import here
from tests.unit.edge_agent.trust.test_trust_clock import Puller
from tests.unit.edge_agent.trust.test_trust_daemon import fleet as daemon_fleet

OFFER = Offer(task="toy", round=1, base="ab" * 32, base_size=9, closes_in_s=1.0)


def tasks(made):
    topic = broadcast_topic(FLEET, Kind.TASK)
    return [decode(p, TaskAnnouncement) for t, p, _ in made.link.sent if t == topic]


def root_of(offer):
    return read_signed(SignedOffer, offer.signed)[0].root


def device(folder, name):
    first = TrustedMetadata.begin((folder / "coordinator" / "trust" / "roots" / "1.json").read_bytes())
    blobs = BlobStore(folder / "coordinator" / "blobs")
    trust = MetadataUpdater(folder / name, first, Puller(blobs), SystemClock(), 1, (FLEET, name), here)
    return WorkVerifier(trust, folder / name, SystemClock())


async def takes(verifier, work):
    verifier.give(decode(encode(work), type(work)))
    return await verifier.next()


async def test_devices_act_on_what_the_coordinator_says_and_one_signature_serves_all(tmp_path) -> None:
    daemon_fleet(tmp_path)
    async with bench(tmp_path, tiny_task(count=1, min_devices=2, devices_per_round=2), TinyJobs()) as made:
        await made.app.announcer.publish_all()
        await made.online("a", "b")
        await made.phase("collecting")
        await made.until(lambda: made.link.to("a", Kind.OFFER) and made.link.to("b", Kind.OFFER))
        a, b = (made.link.to(name, Kind.OFFER)[-1] for name in "ab")
        assert a.signed == b.signed
        for name, offer in (("a", a), ("b", b)):
            verifier = device(tmp_path, name)
            assert (await takes(verifier, tasks(made)[-1])).read() == made.app.driver.task
            assert (await takes(verifier, offer)).base == made.app.driver.state.manifest


async def test_a_rotation_is_announced_with_the_task_before_there_is_any_bundle(tmp_path) -> None:
    repository, key = daemon_fleet(tmp_path)
    async with bench(tmp_path, tiny_task(count=1), TinyJobs(), trust={"again_hours": 0.001}) as made:
        await made.app.announcer.publish_all()
        await made.online("a")
        await made.phase("collecting")
        await made.until(lambda: made.link.to("a", Kind.OFFER))
        verifier = device(tmp_path, "a")
        await takes(verifier, tasks(made)[-1])
        root_ceremony.rotate(repository, [key], None, None, YEAR_S, time.time())
        await made.until(lambda: read_signed(SignedTask, tasks(made)[-1].signed)[0].roots)
        await made.until(
            lambda: read_signed(SignedOffer, made.link.to("a", Kind.OFFER)[-1].signed)[0].root == 2
        )
        await takes(verifier, tasks(made)[-1])
        await takes(verifier, made.link.to("a", Kind.OFFER)[-1])
        said = len(tasks(made))
        await made.app.announcer.renew_signatures()
        assert len(tasks(made)) == said, "the same is not said again"
        roots = {ref.digest for ref in read_signed(SignedTask, tasks(made)[-1].signed)[0].roots}
        assert roots <= set(made.app.pointer_signer.kept())


async def test_without_a_root_nothing_is_signed(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        await made.app.announcer.publish_all()
        await made.online("a")
        await made.phase("collecting")
        await made.until(lambda: made.link.to("a", Kind.OFFER))
        assert (tasks(made)[-1].signed, made.link.to("a", Kind.OFFER)[-1].signed) == (None, None)
        assert made.app.storage.store.get_meta(META) is None


async def test_the_status_names_devices_that_do_not_act_on_what_came(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        await made.online("a", distrusts="the offer that came last: it is not signed")
        settings, config = made.app.settings, tmp_path / "coordinator.toml"
        config.write_text(
            f'fleet = "{settings.fleet}"\nstate_dir = "{settings.state_dir}"\ntask = "{settings.task}"\n'
        )
        found = CliRunner().invoke(app, ["status", "--why", "--config", str(config)])
        assert "devices that do not act on signed messages: a (the offer that came last" in found.output
        assert messages.encode(made.app.roster.get("a").state)


def test_serials_rise_over_restarts_lost_books_and_clocks_that_go_back(tmp_path) -> None:
    repository, _ = fleet(tmp_path / "trust")
    clock = ManualClock(wall=time.time())
    safe = PointerSigner(repository, BlobStore(tmp_path / "blobs"), clock, "f")
    serials = []

    def sign(signer, round_):
        text = signer.offer(OFFER.model_copy(update={"round": round_})).signed
        assert signer.offer(OFFER.model_copy(update={"round": round_, "closes_in_s": 7.0})).signed == text
        serials.append(read_signed(SignedOffer, text)[0].serial)

    for turn in range(2):
        with Database(tmp_path / "c.sqlite3") as store:
            for round_ in (1, 2):
                sign(WorkSigner(safe, store, clock), 2 * turn + round_)
        clock.set_wall(clock.wall() - 86400)
    clock.set_wall(clock.wall() + 2 * 86400 + 60)
    with Database(tmp_path / "another.sqlite3") as store:
        sign(WorkSigner(safe, store, clock), 1)
    assert serials == sorted(set(serials))


async def test_a_key_that_is_gone_announces_no_task_and_stops_no_coordinator(tmp_path) -> None:
    repository, key = daemon_fleet(tmp_path)
    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        before = len(tasks(made))
        root_ceremony.rotate(repository, [key], None, None, YEAR_S, time.time())
        repository.key_file(repository.online().public.keyid).unlink()
        await made.app.announcer.publish_all()
        assert len(tasks(made)) == before


async def test_an_old_coordinators_offer_is_refused_in_words(tmp_path) -> None:
    daemon_fleet(tmp_path)
    verifier = device(tmp_path, "a")
    with pytest.raises(Refused, match="upgrade it"):
        await takes(verifier, OFFER)
