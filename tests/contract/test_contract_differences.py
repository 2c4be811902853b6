"""For every method: devices that were away at different times, and took different ways, hold one version."""

import asyncio

import numpy as np
import pytest

from coordinator.storage.database import Database
from coordinator.storage.model_registry import DIFFERENCES_KEPT, ModelRegistry
from edge_agent.training.shorter_ways import ShorterWays
from models.registry import methods
from models.tensors import flatten
from protocol.errors import Reason, Refused, Transient
from protocol.frames.headers import BlobIndex
from protocol.frames.tensors import Codec
from protocol.tasks.network import Encoder, Network
from runtime.storage.blob_store import BlobStore
from tests.support.methods.contract_cases import as_bytes, begun, task_of

LONG = {"fedavg", "disentafl"}
"""Methods whose blobs are of the same kinds as those of another one, and the one with the most."""
EACH = pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=[pytest.mark.long] if name in LONG else [])
        for name, spec in methods().items()
    ],
)
VERSIONS = 5
LARGE = 2000
"""Bytes of blobs whose frames are more than headers."""


def larger(spec):
    """A task whose blobs hold more values than names."""
    task = task_of(spec)
    if spec.material == "graph":
        return task
    encoders = {name: Encoder(width=16, depth=3) for name in task.modality_names}
    return task.model_copy(update={"network": Network(encoders=encoders, feature_dim=32, hidden_dim=32)})


class Device:
    """A blob store, and a fetch that counts bytes; a coordinator may lack blobs or have damaged ones."""

    def __init__(self, root, source, *, lacks=(), damages=()) -> None:
        self.store, self.bytes = BlobStore(root), 0
        self._source, self.lacks, self.damages = source, set(lacks), set(damages)
        self.ways = ShorterWays(self.store, self._fetch)

    async def _fetch(self, refs) -> None:
        for ref in refs:
            if self.store.has(ref.digest):
                continue
            if ref.digest in self.lacks:
                raise Transient("no such blob")
            if ref.digest in self.damages:
                raise Refused(Reason.WRONG_DIGEST, "damaged twice")
            self.store.put(self._source.get(ref.digest))
            self.bytes += ref.size

    def get(self, manifest) -> int:
        """Bytes of the blobs of a version that came."""
        before = self.bytes
        asyncio.run(self.ways.obtain(manifest, sorted(manifest.blobs)))
        assert all(self.store.get(ref.digest) for ref in manifest.blobs.values())
        return self.bytes - before


def moved(state, seed):
    """A fold's result: every weight a little further, whole numbers and keys as they are."""
    rng = np.random.default_rng(seed)
    return {
        blob: {
            name: x + rng.normal(0, 0.01, x.shape).astype(np.float32) if x.ndim > 1 else x.copy()
            for name, x in tensors.items()
        }
        if not blob.startswith(("classes", "rows"))
        else tensors
        for blob, tensors in state.items()
    }


@pytest.fixture
def published(tmp_path, spec):
    """A registry with versions 0 to 4 of the method: it, its blobs, exact states, digests and manifests."""
    task = larger(spec)
    states = [begun(spec, task)]
    with Database(tmp_path / "c.sqlite3") as store:
        blobs = BlobStore(tmp_path / "coordinator")
        versions, digests, manifests = ModelRegistry(store, blobs, task), [], []
        for number in range(VERSIONS):
            if number:
                states.append(moved(states[-1], number))
            parent = digests[-1] if digests else None
            digest, manifest = versions.publish(number, states[-1], parent)
            assert versions.publish(number, states[-1], parent) == (digest, manifest), "after a crash"
            digests.append(digest)
            manifests.append(manifest)
        yield versions, blobs, states, digests, manifests


@EACH
def test_devices_that_were_away_hold_the_same_bits(tmp_path, spec, published):
    _, blobs, _, _, manifests = published
    costs = {}
    for first in range(VERSIONS):
        device = Device(tmp_path / f"d{first}", blobs)
        device.get(manifests[first])
        costs[first] = device.get(manifests[-1])
        if first < VERSIONS - 2:  # it was online for one version meanwhile
            device = Device(tmp_path / f"e{first}", blobs)
            for at in (first, first + 1, VERSIONS - 1):
                device.get(manifests[at])
    rounded = [name for name in manifests[-1].blobs if name.split("/")[0] in spec.rounded]
    assert rounded
    assert set(manifests[-1].differences) <= set(rounded)
    whole = sum(manifests[-1].blobs[name].size for name in rounded)
    assert costs[VERSIONS - 1] == 0
    if whole > LARGE:
        assert costs[VERSIONS - 2] < whole / 4


@EACH
def test_what_rounding_left_out_is_in_the_next_versions(spec, published):
    versions, _, states, digests, _ = published
    for state, digest in zip(states, digests, strict=True):
        exact, held = versions.exact_state(digest), versions.state(digest)
        for name, x in flatten(state).items():
            if spec.codecs.get(name.rsplit("/", 1)[-1]) in {None, Codec.UINT8}:
                assert as_bytes(exact)[name] == x.tobytes()
            if name.split("/")[0] not in spec.rounded:
                assert flatten(held)[name].tobytes() == flatten(exact)[name].tobytes()
    first, last = (
        max(np.abs(flatten(versions.state(digests[at]))[n] - x).max(initial=0) for n, x in flatten(s).items())
        for at, s in ((0, states[0]), (-1, states[-1]))
    )
    assert last < max(first, 0.05), "errors do not add up"


@EACH
@pytest.mark.parametrize("fault", ["lacks", "damages"])
def test_a_way_that_is_gone_or_damaged_costs_bytes_and_no_version(tmp_path, spec, published, fault):
    assert spec.rounded
    _, blobs, _, _, manifests = published
    newest = manifests[-1]
    device = Device(tmp_path / "d", blobs)
    device.get(manifests[-2])
    differences = {one.blob.digest for one in newest.differences.values()}
    setattr(device, fault, differences)
    device.get(newest)
    assert newest.packed is not None
    listed = BlobIndex.model_validate_json(blobs.get(newest.packed.digest)).blobs
    late = Device(tmp_path / "late", blobs)
    setattr(late, fault, differences | {ref.digest for ref in listed.values()})
    assert late.get(newest) >= sum(newest.blobs[name].size for name in listed)
    assert late.ways.bytes_spared == 0


@EACH
def test_a_version_in_which_no_device_moved_a_blob_sends_nothing_of_it(tmp_path, spec, published):
    assert spec.rounded
    versions, blobs, states, digests, manifests = published
    _, again = versions.publish(VERSIONS, states[-1], digests[-1])
    assert again.blobs == manifests[-1].blobs
    assert not again.differences
    assert (again.packed, again.exact) == (manifests[-1].packed, manifests[-1].exact)
    device = Device(tmp_path / f"d-{spec.name}", blobs)
    device.get(manifests[-2])
    near = device.get(again)
    assert near < sum(ref.size for ref in again.blobs.values()), "through a version without a difference"


def test_lost_exact_values_are_those_that_devices_hold(tmp_path):
    spec = methods()["qqr"]
    task, root = task_of(spec), tmp_path / "blobs"
    with Database(tmp_path / "c.sqlite3") as store:
        blobs = BlobStore(root)
        versions = ModelRegistry(store, blobs, task)
        digest, manifest = versions.publish(0, begun(spec, task), None)
        assert as_bytes(versions.exact_state(digest)) != as_bytes(versions.state(digest))
        blobs.remove(manifest.exact.digest)
        assert as_bytes(versions.exact_state(digest)) == as_bytes(versions.state(digest))


def test_old_versions_go_with_their_differences_and_exact_values(tmp_path):
    spec = methods()["qqr"]
    task, parent = task_of(spec), None
    with Database(tmp_path / "c.sqlite3") as store:
        blobs = BlobStore(tmp_path / "blobs")
        versions, state, sizes = ModelRegistry(store, blobs, task), begun(spec, task), []
        for number in range(DIFFERENCES_KEPT + 6):
            digest, manifest = versions.publish(number, state, parent)
            versions.record(number, digest, parent, [], wall=0.0, traffic=(0, 0), metrics={})
            versions.collect(number, 3)
            sizes.append(blobs.total_bytes())
            state, parent = moved(state, number), digest
        assert sizes[-1] < 1.02 * sizes[-4], "bounded"
        assert versions.exact_state(digest)
        assert all(blobs.has(one.blob.digest) for one in manifest.differences.values())


def test_float32_sends_whole_versions(tmp_path):
    spec = methods()["qqr"]
    task = task_of(spec)
    task = task.model_copy(update={"downlink": task.downlink.model_copy(update={"codec": "float32"})})
    with Database(tmp_path / "c.sqlite3") as store:
        versions = ModelRegistry(store, BlobStore(tmp_path / "blobs"), task)
        state = begun(spec, task)
        digest, manifest = versions.publish(0, state, None)
        assert as_bytes(versions.state(digest)) == as_bytes(state)
        assert not manifest.differences
        assert manifest.packed is manifest.exact is manifest.parent_size is None
