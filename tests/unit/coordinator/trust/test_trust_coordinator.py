"""The coordinator's side: keys, roots, what is signed when; and the command. A device's trust judges it."""

import json
import stat
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.delivery.exporters import FleetExporter
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.storage.database import Database
from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import DAY_S, BundleTarget, Repository
from coordinator.trust.signer import PointerSigner
from edge_agent.trust.trusted_metadata import TrustedMetadata
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer
from protocol.trust.metadata import Snapshot, Targets, Timestamp, read
from runtime.storage.blob_store import BlobStore
from tests.support.clock import ManualClock

NOW = 1_800_000_000.0
YEAR_S = 365 * DAY_S


def bundle(content=b"one", version=1):
    return BundleTarget(task="toy", version=version, ref=BlobRef(digest=digest(content), size=len(content)))


def public_pem(key: Key) -> str:
    raw = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public.keyval["public"]))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return raw.public_bytes(serialization.Encoding.PEM, form).decode()


def pointer(content=b"one", version=1):
    one = bundle(content, version)
    return ModelPointer(task=one.task, version=version, bundle=one.ref)


def fleet(folder, keys=1, threshold=1):
    repository, roots = Repository(folder), [Key.new() for _ in range(keys)]
    root_ceremony.init(repository, roots, threshold, YEAR_S, NOW)
    return repository, roots


def taken(trusted, published, now=NOW):
    trusted = trusted.with_timestamp(published.timestamp.encode(), now)
    if trusted.needs_snapshot:
        trusted = trusted.with_snapshot(published.snapshot.encode(), now)
    return trusted.with_targets(published.targets.encode(), now) if trusted.needs_targets else trusted


def begun(repository):
    return TrustedMetadata.begin(repository.roots()[0])


def versions(published):
    kinds = (Timestamp, Snapshot, Targets)
    return [read(kind, getattr(published, kind.role).encode())[0].version for kind in kinds]


def test_what_is_published_is_trusted_by_a_device(tmp_path):
    repository, _ = fleet(tmp_path)
    trusted = taken(begun(repository), repository.publish([bundle()], NOW))
    trusted.require(pointer(), NOW)


def test_nothing_is_signed_anew_before_it_is_due(tmp_path):
    repository, _ = fleet(tmp_path)
    first = repository.publish([bundle()], NOW)
    assert Repository(tmp_path).publish([bundle()], NOW + 0.9 * DAY_S) == first
    second = repository.publish([bundle()], NOW + DAY_S)
    assert all(new > old for new, old in zip(versions(second), versions(first), strict=True))
    known = begun(repository)
    for published, now in ((first, NOW), (second, NOW + DAY_S)):
        known = taken(known, published, now)


def test_a_new_bundle_is_signed_at_once(tmp_path):
    repository, _ = fleet(tmp_path)
    known = taken(begun(repository), repository.publish([bundle()], NOW))
    known = taken(known, repository.publish([bundle(b"two", 2)], NOW + 1), NOW + 1)
    known.require(pointer(b"two", 2), NOW + 1)
    with pytest.raises(Refused):
        known.require(pointer(), NOW + 1)


def test_a_restored_old_copy_goes_on_above_what_devices_know(tmp_path):
    repository, _ = fleet(tmp_path)
    repository.publish([bundle()], NOW)
    copy = (tmp_path / "published.json").read_bytes()
    known = begun(repository)
    for day in range(1, 9):
        one = bundle(b"%d" % day, day)
        known = taken(known, repository.publish([one], NOW + day * DAY_S), NOW + day * DAY_S)
    for late, restored in enumerate((copy, b"damaged")):
        (tmp_path / "published.json").write_bytes(restored)
        now = NOW + 8 * DAY_S + 60 * (late + 1)
        known = taken(known, repository.publish([bundle()], now, anew=True), now)
        known.require(pointer(), now)


def test_a_clock_that_went_back_signs_nothing_that_devices_refuse(tmp_path):
    repository, _ = fleet(tmp_path)
    known = taken(begun(repository), repository.publish([bundle()], NOW))
    taken(known, repository.publish([bundle(b"two", 2)], NOW - 100 * DAY_S))


def test_keys_lie_where_only_their_owner_reads_them(tmp_path):
    repository, _ = fleet(tmp_path)
    (file,) = (tmp_path / "keys").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"gone")
    with pytest.raises(Misconfigured, match="not a key"):
        repository.publish([bundle()], NOW)
    file.unlink()
    with pytest.raises(Misconfigured, match="no such key file"):
        repository.publish([bundle()], NOW)


def test_a_rotation_takes_the_online_key_back(tmp_path):
    repository, roots = fleet(tmp_path)
    stolen = repository.online()
    known = taken(begun(repository), repository.publish([bundle()], NOW))
    done = root_ceremony.rotate(repository, roots, None, None, YEAR_S, NOW)
    assert (done.version, done.lacking) == (2, 0)
    assert len(list((tmp_path / "keys").iterdir())) == 1
    known = known.with_root(repository.roots()[1])
    with pytest.raises(Refused) as caught:
        known.with_timestamp(
            stolen.signs(read(Timestamp, repository.published().timestamp.encode())[1]).encode(), NOW
        )
    assert caught.value.reason is Reason.UNTRUSTED
    taken(known, repository.publish([bundle()], NOW)).require(pointer(), NOW)


def test_a_root_is_renewed_with_the_same_keys(tmp_path):
    repository, roots = fleet(tmp_path)
    known = taken(begun(repository), repository.publish([bundle()], NOW))
    online = repository.online().public
    root_ceremony.rotate(repository, roots, None, None, 2 * YEAR_S, NOW + DAY_S, keep_online=True)
    assert repository.online().public == online
    known = known.with_root(repository.roots()[1])
    known.require(pointer(), NOW)
    assert known.epoch == 1


def test_a_root_of_two_keys_waits_for_the_second(tmp_path):
    repository, first, second = Repository(tmp_path), Key.new(), Key.new()
    absent = Key(second.public, None)
    done = root_ceremony.init(repository, [first, absent], 2, YEAR_S, NOW)
    assert (done.lacking, repository.exists) == (1, False)
    with pytest.raises(Misconfigured, match="neither of the new root"):
        root_ceremony.sign(repository, [Key.new()])
    assert root_ceremony.sign(repository, [first]).lacking == 1
    assert root_ceremony.sign(repository, [second]).lacking == 0
    taken(begun(repository), repository.publish([bundle()], NOW)).require(pointer(), NOW)
    # and so does an exchange of the root's keys: both the old ones and the new one must sign
    third = Key.new()
    assert root_ceremony.rotate(repository, [third, first], [third], 1, YEAR_S, NOW).lacking == 1
    assert repository.root().version == 1
    repository.publish([bundle()], NOW)
    assert root_ceremony.sign(repository, [second]).lacking == 0
    begun(repository).with_root(repository.roots()[1])
    with pytest.raises(Misconfigured, match="no root waits"):
        root_ceremony.sign(repository, [second])


def test_what_cannot_be_is_refused_in_words(tmp_path):
    repository, roots = fleet(tmp_path / "a")
    with pytest.raises(Misconfigured, match="rotate"):
        root_ceremony.init(repository, roots, 1, YEAR_S, NOW)
    with pytest.raises(Misconfigured, match="--threshold 3"):
        root_ceremony.init(Repository(tmp_path / "b"), roots, 3, YEAR_S, NOW)
    with pytest.raises(Misconfigured, match="trust init"):
        root_ceremony.rotate(Repository(tmp_path / "c"), roots, None, None, YEAR_S, NOW)
    (tmp_path / "a" / "roots" / "1.json").unlink()
    with pytest.raises(Misconfigured, match="missing"):
        repository.roots()


@pytest.mark.parametrize("word", [None, b"secret"])
def test_a_key_file_is_read_as_it_was_written(tmp_path, word):
    key, file = Key.new(), tmp_path / "k.pem"
    key.save(file, word)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Key.load(file, word).public == key.public
    with pytest.raises(Misconfigured, match="not overwritten"):
        key.save(file)
    with pytest.raises(Misconfigured, match=r"encrypted|passphrase"):
        Key.load(file, b"other" if word is None or word else None)
    public = tmp_path / "k.pub"
    public.write_text(public_pem(key))
    assert Key.load(public) == Key(key.public, None)
    for wrong in (b"", b"-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n"):
        public.write_bytes(wrong)
        with pytest.raises(Misconfigured):
            Key.load(public)


class Post:
    def __init__(self):
        self.said = []

    async def broadcast(self, _kind, message):
        self.said.append(message)


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "c.sqlite3") as opened:
        yield opened


async def delivery(store, blobs, post, clock, signer):
    """One bundle was exported."""
    made = BundleDelivery(
        FleetExporter(store, blobs, clock),
        None,
        task="toy",
        store=store,
        blobs=blobs,
        state_dir=Path(store.where).parent,
        recent=3,
        post=post,
        roster=DeviceRegistry(store, clock.wall, clock.now),
        clock=clock,
        pointer_signer=signer,
    )
    await made.exporter.store_bundle(1, b"one", {})
    return made


async def test_the_announcement_carries_what_vouches_and_the_blobs_are_kept(tmp_path, store):
    repository, roots = fleet(tmp_path / "trust")
    blobs, post, clock = BlobStore(tmp_path / "blobs"), Post(), ManualClock(wall=NOW)
    deployment = await delivery(store, blobs, post, clock, PointerSigner(repository, blobs, clock, "f"))
    assert await deployment.announce()
    root_ceremony.rotate(repository, roots, None, None, YEAR_S, NOW)
    assert await deployment.announce()
    first, second = (message.trust for message in post.said)
    assert (len(first.roots), len(second.roots)) == (0, 1)
    assert set(deployment.retained_digests()) == {
        digest(b"one"),
        *(ref.digest for ref in (*second.roots, second.timestamp, second.snapshot, second.targets)),
    }
    known = begun(repository).with_root(blobs.get(second.roots[0].digest))
    known = known.with_timestamp(blobs.get(second.timestamp.digest), NOW)
    known = known.with_snapshot(blobs.get(second.snapshot.digest), NOW)
    known.with_targets(blobs.get(second.targets.digest), NOW).require(post.said[-1], NOW)


async def test_a_key_that_is_gone_stops_no_coordinator(tmp_path, store):
    repository, _ = fleet(tmp_path / "trust")
    repository.key_file(repository.online().public.keyid).unlink()
    blobs, post, clock = BlobStore(tmp_path / "blobs"), Post(), ManualClock(wall=NOW)
    deployment = await delivery(store, blobs, post, clock, PointerSigner(repository, blobs, clock, "f"))
    assert not await deployment.announce()
    assert post.said == []


async def test_without_a_root_nothing_is_signed(tmp_path, store):
    blobs, post, clock = BlobStore(tmp_path / "blobs"), Post(), ManualClock(wall=NOW)
    pointer_signer = PointerSigner(Repository(tmp_path / "trust"), blobs, clock, "f")
    assert await (await delivery(store, blobs, post, clock, pointer_signer)).announce()
    assert post.said[0].trust is None


def test_threads_that_sign_at_once_agree(tmp_path):
    repository, _ = fleet(tmp_path / "trust")
    safe = PointerSigner(repository, BlobStore(tmp_path / "blobs"), ManualClock(wall=NOW), "f")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(safe.vouched(pointer(), [bundle()]))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({one.trust.timestamp.digest for one in found}) == 1


# -- the command


@pytest.fixture
def command(tmp_path):
    config = tmp_path / "coordinator.toml"
    config.write_text('fleet = "f"\nstate_dir = "state"\ntask = "task.toml"\n')

    def call(*words, status=0):
        result = CliRunner().invoke(app, ["trust", *words, "--config", str(config)])
        assert result.exit_code == status or (status and result.exception), result.output
        if status:
            return str(result.exception)
        return json.loads(result.output) if "json" in words else result.output

    return call


def test_the_command_makes_renews_and_says(tmp_path, command):
    assert command("status", "--format", "json")["root"] is None
    assert "root        none\n" in command("status")
    key, word = str(tmp_path / "root.pem"), tmp_path / "word"
    word.write_text("correct horse\n")
    options = ("--root-key", key, "--passphrase-file", str(word), "--format", "json")
    assert command("init", *options) == {
        "root": 1,
        "lacking": 0,
        "file": str(tmp_path / "state" / "trust" / "root.json"),
    }
    assert "ENCRYPTED" in (tmp_path / "root.pem").read_text()
    repository = Repository(tmp_path / "state" / "trust")
    repository.publish([bundle()], time.time())
    assert command("rotate", *options)["root"] == 2
    found = command("status", "--format", "json")
    assert found["bundles"] == "signed"
    assert (found["root"], found["threshold"]) == (2, 1)
    assert 729 < found["root_days"] <= 730
    assert "rotate" in command("init", *options, status=78)
    assert "encrypted" in command("rotate", "--root-key", key, status=78)


def test_the_command_lets_a_second_holder_sign(tmp_path, command):
    theirs, public = Key.new(), tmp_path / "theirs.pub"
    theirs.save(tmp_path / "theirs.pem")
    public.write_text(public_pem(theirs))
    said = command(
        "init", "--root-key", str(tmp_path / "a.pem"), "--root-key", str(public), "--threshold", "2"
    )
    assert "waits for 1" in said
    assert "waits" in command("status")
    assert "root 1 counts" in command("sign", "--root-key", str(tmp_path / "theirs.pem"))
