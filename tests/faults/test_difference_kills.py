"""SIGKILL at every write, while a difference is published or applied by a device: one digest afterwards.

Between two writes are the moments that matter: the difference is stored and no manifest names it, the
manifest is stored and no row announces the version, the difference is applied and its result is not stored.
"""

import asyncio
import itertools
import shutil
from pathlib import Path

import pytest

from coordinator.storage.database import Database
from coordinator.storage.model_registry import ModelRegistry
from edge_agent.training.shorter_ways import ShorterWays
from models.contract import Blobs
from models.registry import method
from protocol.frames.headers import Manifest
from runtime.storage.blob_store import BlobStore
from tests.contract.test_contract_differences import larger, moved
from tests.support.methods.contract_cases import begun
from tests.support.storage.killing_disk import killed_at

pytestmark = pytest.mark.long
SPEC = method("qqr")
TASK = larger(SPEC)


def coordinator(root: Path, states: list[Blobs]) -> str:
    """Publish and announce the versions that are not yet announced; the newest one's manifest."""
    root.mkdir(exist_ok=True)
    with Database(root / "c.sqlite3") as store:
        versions, digest = ModelRegistry(store, BlobStore(root / "blobs"), TASK), ""
        for number, state in enumerate(states):
            row = versions.row(number)
            if row is None:
                digest, _ = versions.publish(number, state, digest or None)
                versions.record(number, digest, None, (), wall=0.0, traffic=(0, 0), metrics={})
            else:
                digest = row["manifest"]
        return digest


def device(root: Path, blobs: Path, digest: str) -> None:
    """Get the blobs of a version, by differences where it can."""
    store, source = BlobStore(root), BlobStore(blobs)

    async def fetch(refs) -> None:
        for ref in refs:
            if not store.has(ref.digest):
                store.put(source.get(ref.digest))

    manifest = Manifest.model_validate_json(source.get(digest))
    asyncio.run(ShorterWays(store, fetch).obtain(manifest, sorted(manifest.blobs)))


def held(root: Path, manifest: Manifest) -> None:
    """Each blob is whole, and that of its digest; ``get`` computes it."""
    store = BlobStore(root)
    assert all(len(store.get(ref.digest)) == ref.size for ref in manifest.blobs.values())


@pytest.fixture
def states() -> list[Blobs]:
    first = begun(SPEC, TASK)
    return [first, moved(first, 1), moved(moved(first, 1), 2)]


def test_a_coordinator_killed_at_any_write_of_a_version_publishes_the_same_one(tmp_path, states):
    wanted = coordinator(tmp_path / "whole", states)
    coordinator(tmp_path / "begin", states[:2])
    before = BlobStore(tmp_path / "begin" / "blobs")
    for at in itertools.count(1):
        root = tmp_path / "killed"
        shutil.copytree(tmp_path / "begin", root)
        if not killed_at(at, lambda root=root: coordinator(root, states)):
            break
        assert coordinator(root, states) == wanted
        blobs = BlobStore(root / "blobs")
        manifest = Manifest.model_validate_json(blobs.get(wanted))
        assert manifest.differences
        for start in ("", "old"):  # a device without any version, and one with the version before
            if start:
                device(root / f"d{start}", root / "blobs", str(manifest.parent))
            device(root / f"d{start}", root / "blobs", wanted)
            held(root / f"d{start}", manifest)
        shutil.rmtree(root)
    assert at > 3 * len(manifest.differences), "it was killed within each difference"
    assert not before.has(wanted)


def test_a_device_killed_at_any_write_while_it_applies_a_difference_holds_the_version(tmp_path, states):
    digest, blobs = coordinator(tmp_path / "c", states), tmp_path / "c" / "blobs"
    manifest = Manifest.model_validate_json(BlobStore(blobs).get(digest))
    device(tmp_path / "begin", blobs, str(manifest.parent))
    for at in itertools.count(1):
        root = tmp_path / "killed"
        shutil.copytree(tmp_path / "begin", root)
        if not killed_at(at, lambda root=root: device(root, blobs, digest)):
            break
        device(root, blobs, digest)
        held(root, manifest)
        shutil.rmtree(root)
    assert at > 3 * len(manifest.differences), "it was killed within each difference"
