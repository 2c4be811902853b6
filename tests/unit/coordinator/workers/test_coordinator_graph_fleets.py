"""A knowledge-graph fleet: rows of each device, served to it alone; metrics that devices report."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.aggregation.reported_metrics import weighted_mean
from coordinator.aggregation.round_fold import RoundFold
from coordinator.cli.main import app as coordinator
from coordinator.cli.round import app as rounds
from coordinator.config.coordinator import load_settings
from coordinator.fleet.requirements import requirements_of
from coordinator.ingest.header_checks import check_header
from coordinator.recovery.evidence import newest_manifest
from coordinator.recovery.folder_owner import check_owner, own_task
from coordinator.rollout.releases import newest
from coordinator.selection.policies import SelectionInput, policy
from coordinator.status.history import read
from coordinator.status.prometheus import _Collector
from coordinator.storage.backup import backup_of
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.private_blobs import BlobOwnership, without_private_blobs
from coordinator.storage.run_id import RunId
from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.task import load_task
from lichen_lab.benchmarks.fault_injection import refold
from models.methods.mmfed3_hide.messages import keys_name, value_name
from protocol import messages
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import Limits, digest, open_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec
from protocol.messages import (
    MAX_BLOB_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MESSAGE_BYTES,
    BlobPointer,
    BlobRef,
    Fetch,
    Offer,
    RoundAnnouncement,
)
from protocol.topics import Kind, broadcast_topic
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.fake import FLEET, settings_for
from tests.support.coordinator.graph import (
    deliver_rows,
    denied,
    gateways_online,
    graph_bench,
    graph_frame,
    graph_header,
    graph_task,
    graph_update,
    rows_of,
    served,
    things,
)
from tests.support.coordinator.guided import PART, Guided

TASK = graph_task(min_devices=2)
HERE, THERE = things("boiler", "cellar", "pump"), things("boiler", "roof")
TOML = """
name = "things"
method = "mmfed3_hide"
[graph]
features = [{ name = "text", dim = 3 }]
[config]
dim = 8
"""


def written(folder, more: str = "", task: str = TOML):
    (folder / "task.toml").write_text(task)
    config = folder / "coordinator.toml"
    config.write_text(f'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n{more}')
    return config


async def first_round(made) -> None:
    """Both gateways, which share the boiler; then the second round is open."""
    await gateways_online(made, "a", "b")
    await made.phase("collecting")
    await deliver_rows(made, "a", HERE, 1.0, triples=30, metrics={"mrr": 0.5, "loss": 2.0})
    await deliver_rows(made, "b", THERE, 3.0, triples=10, metrics={"mrr": 0.1, "hits10": 0.25})
    await made.until(lambda: made.app.driver.state.version == 1)


async def ref_of(made, blob: str) -> BlobRef:
    manifest = made.app.round_worker.registry.manifest(made.app.driver.state.manifest)
    return manifest.blobs[blob]


async def asks(made, device: str, mark: str) -> None:
    request = Fetch(digest=mark, first=0, count=1, chunk_bytes=65536)
    await made.give(device, Kind.FETCH, messages.encode(request))
    await made.until(lambda: denied(made, device, mark) or served(made, device, mark))


async def test_rows_are_kept_small_and_versions_are_as_good_as_devices_say(tmp_path) -> None:
    async with graph_bench(tmp_path, TASK) as made:
        await first_round(made)
        await made.phase("collecting")
        store = made.app.round_worker.registry._blobs
        ref = await ref_of(made, "rows/a")
        header, tensors = open_frame(store.get(ref.digest), BlobHeader)
        state = await made.app.model.state()
        await made.app.announcer.publish_round()
        said = messages.decode(
            [p for t, p, _ in made.link.sent if t == broadcast_topic(FLEET, Kind.ROUND)][-1],
            RoundAnnouncement,
        )
    assert header.name == "rows/a"
    assert {name: one.codec for name, one in tensors.items()} == {
        keys_name("a"): Codec.UINT8,
        value_name("a"): Codec.FLOAT16,
    }
    np.testing.assert_array_equal(state["rows/a"][keys_name("a")], HERE)
    boiler = things("boiler")[0]
    values = {d: state[f"rows/{d}"][value_name(d)] for d in "ab"}
    place = {d: np.flatnonzero((k == boiler).all(axis=1))[0] for d, k in (("a", HERE), ("b", THERE))}
    np.testing.assert_array_equal(values["a"][place["a"]], values["b"][place["b"]])
    expected = {"mrr": 0.4, "hits10": 0.25}
    assert said.metrics == pytest.approx(expected)
    found = read(tmp_path / "coordinator")
    assert found["rounds"][0]["metrics"] == pytest.approx(expected)
    assert found["confusion"] is None


async def test_a_device_is_served_its_own_rows_and_nobody_elses_also_after_a_restart(tmp_path) -> None:
    async with graph_bench(tmp_path, TASK) as made:
        await first_round(made)
        rows, whole = await ref_of(made, "rows/a"), await ref_of(made, "projection/text")
        for device in ("b", "a", "b"):
            await asks(made, device, rows.digest)
        for mark in (whole.digest, made.app.driver.state.manifest):
            await asks(made, "b", mark)
        assert (made.app.server.withheld, denied(made, "a", rows.digest)) == (2, False)
        assert digest(served(made, "a", rows.digest)) == rows.digest
        assert served(made, "b", rows.digest) == b""
        assert digest(served(made, "b", whole.digest)) == whole.digest
        families = {one.name: one for one in _Collector(made.app.measured).collect()}
        assert families["lichen_blobs_withheld"].samples[0].value == 2
    async with graph_bench(tmp_path, TASK) as made:
        await asks(made, "b", rows.digest)
        assert denied(made, "b", rows.digest)
        assert served(made, "b", rows.digest) == b""


async def test_what_cannot_be_read_is_served_to_nobody(tmp_path) -> None:
    async with graph_bench(tmp_path, TASK) as made:
        await first_round(made)
        ref = await ref_of(made, "rows/a")
    blobs = BlobStore(tmp_path / "coordinator" / "blobs")
    path = blobs.path(ref.digest)
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    owners = BlobOwnership(TASK, blobs)
    assert not owners.may_fetch("a", ref.digest)
    assert not owners.may_fetch("a", "0" * 64), "not here"
    assert BlobOwnership(TASK.model_copy(update={"method": "tiny"}), blobs).may_fetch("b", "0" * 64)


async def test_no_job_gets_the_rows_of_a_device(tmp_path) -> None:
    task = graph_task(count=1, min_devices=2)
    async with graph_bench(tmp_path, task) as made:
        await first_round(made)
        await made.phase("done")
        assert made.app.jobs.exported == [("projection/text",)]
        assert made.app.jobs.done[:2] == ["initial", "export"], "nothing is judged here"
        (bundle,) = newest(made.app.storage.store).pieces
        assert bundle.metrics["mrr"] == pytest.approx(0.4)
        await asks(made, "b", bundle.bundle.digest)
        assert served(made, "b", bundle.bundle.digest).startswith(b"bundle 1 ")
        state = await made.app.model.state()
    assert set(state) == {"projection/text", "rows/a", "rows/b"}
    assert without_private_blobs(task, state)["projection/text"] is state["projection/text"]
    assert without_private_blobs(task.model_copy(update={"method": "tiny"}), state) == state


async def test_what_judges_or_finishes_a_version_would_not_get_them_either(tmp_path, monkeypatch) -> None:
    task = graph_task(count=1, min_devices=2)
    async with graph_bench(tmp_path, task, evaluation={"data": tmp_path / "any.npz"}) as made:
        await first_round(made)
        await made.phase("done")
        assert made.app.jobs.judged == [("projection/text",)] * 2
        state = await made.app.model.state()

    async def held():
        return state

    class Looking:
        async def view(self, given, *_):
            assert set(given) == {"projection/text"}
            return {"a": {PART: np.ones(1, np.float32)}}, {}

        async def finish(self, _round, _seed, given):
            assert set(given) == {"projection/text"}
            return {name: {n: t + 1 for n, t in blob.items()} for name, blob in given.items()}, {}

    monkeypatch.setattr("coordinator.aggregation.round_fold.screen_round", lambda *_: {})
    monkeypatch.setattr("coordinator.aggregation.round_fold.fold_screened", lambda *_: state)
    entry = AcceptedUpdate("a", "d" * 64, tmp_path)
    made = await RoundFold(Guided(), task, Looking()).fold(1, state, [entry], Limits(), {}, {}, held)
    assert made.state["rows/a"] is state["rows/a"]
    moved = made.state["projection/text"]["projection/text/weight"]
    np.testing.assert_array_equal(moved, state["projection/text"]["projection/text/weight"] + 1)


async def two_rounds(root, *, cut: bool) -> str:
    """Round 2: a has a new thing, c joins, b takes no part; cut off when the first of them is receipted."""
    async with graph_bench(root, TASK) as made:
        made.app.fleet.may_select = lambda: (
            made.app.driver.state.round == 1 or made.app.roster.online() == ("a", "c")
        )
        await first_round(made)
        await gateways_online(made, "b", status="offline")
        await gateways_online(made, "c")
        await made.phase("collecting")
        await deliver_rows(made, "a", things("boiler", "cellar", "pump", "tank"), 0.5)
        if not cut:
            await deliver_rows(made, "c", THERE, -1.0)
            await made.until(lambda: made.app.driver.state.version == 2)
            return made.app.driver.state.manifest
    async with graph_bench(root, TASK) as made:
        await deliver_rows(made, "c", THERE, -1.0)
        await made.until(lambda: made.app.driver.state.version == 2)
        assert not made.app.server.withheld
        return made.app.driver.state.manifest


async def test_a_round_that_is_cut_off_gives_the_same_bytes(tmp_path) -> None:
    whole = await two_rounds(tmp_path / "whole", cut=False)
    assert await two_rounds(tmp_path / "cut", cut=True) == whole
    versions = json.loads(BlobStore(tmp_path / "cut" / "coordinator" / "blobs").get(whole))
    assert set(versions["blobs"]) == {"projection/text", "rows/a", "rows/b", "rows/c"}


async def test_an_audit_makes_every_version_again_from_the_frames_alone(tmp_path) -> None:
    async with graph_bench(tmp_path, TASK) as made:
        first = await made.app.jobs.initial()
        await gateways_online(made, "a", "b")
        sent = []
        for keys in ((HERE, THERE), (things("boiler", "tank"), THERE)):
            await made.phase("collecting")
            moves = zip("ab", keys, (1.0, -3.3), strict=True)
            sent.append([(d, await deliver_rows(made, d, k, value)) for d, k, value in moves])
            await made.until(lambda: made.app.driver.state.version == len(sent))
        manifest = made.app.driver.state.manifest
    counted = {n: [(d, digest(frame)) for d, frame in of] for n, of in enumerate(sent, 1)}
    for of in sent:
        for _, frame in of:
            (tmp_path / digest(frame)).write_bytes(frame)
    again = refold.manifests(
        TASK, first, counted, tmp_path.joinpath, tmp_path / "again", run=RunId(tmp_path / "coordinator")
    )
    assert len(again) == len(sent) + 1
    assert again[-1] == manifest


async def test_a_salvage_proves_the_version_its_rows_and_what_devices_said_of_it(tmp_path) -> None:
    async with graph_bench(tmp_path, TASK) as made:
        await first_round(made)
        await made.phase("collecting")
        await made.until(lambda: made.app.round_worker._secured == 1)
        manifest = made.app.driver.state.manifest
        await deliver_rows(made, "a", HERE, 0.5)
    database = tmp_path / "coordinator" / DATABASE
    database.write_bytes(b"not a database")
    backup_of(database).unlink()
    async with graph_bench(tmp_path, TASK) as made:
        state = made.app.driver.state
        assert (state.version, state.manifest, tuple(state.delivered)) == (1, manifest, ("a",))
        assert made.app.round_worker.registry.metrics(1) == pytest.approx({"mrr": 0.4, "hits10": 0.25})
        ref = await ref_of(made, "rows/a")
        await gateways_online(made, "b")
        await asks(made, "b", ref.digest)
        assert denied(made, "b", ref.digest)


async def sent_in_chunks(made, device: str, update: bytes) -> None:
    """A pointer; and where it is wanted, all of it."""
    mark, size, open_ = digest(update), len(update), made.app.driver.state
    blob = BlobRef(digest=mark, size=size)
    pointer = BlobPointer(task="things", round=open_.round, blob=blob, chunk_bytes=65536)
    await made.give(device, Kind.UPDATE, messages.encode(pointer))
    if not made.link.wants(device):
        return
    for index in range(-(-size // 65536)):
        part = update[index * 65536 : (index + 1) * 65536]
        await made.give(device, Kind.UP_BLOB, part, mark, index)


async def test_an_update_of_two_megabytes_fits_and_its_bound_follows_from_the_task(tmp_path) -> None:
    count, dim = 14_000, 128
    keys = np.unique(np.random.default_rng(0).integers(0, 256, (count, 16), np.uint8), axis=0)
    task = graph_task(dim, {"max_entities": count}, min_devices=1)
    async with graph_bench(tmp_path, task) as made:
        await gateways_online(made, "a")
        await made.phase("collecting")
        state, open_ = await made.app.model.state(), made.app.driver.state
        limits = made.app.model.limits(state)
        assert limits.max_total_elements == pytest.approx(count * (dim + 17), abs=70_000)
        head = graph_header("a", 1, open_.manifest)
        huge = graph_frame(head, rows_of(state, "a", keys, 0.25, dim) | more_rows(limits.max_elements))
        await sent_in_chunks(made, "a", huge)
        assert made.link.receipts("a")[-1].reason == "too_large"
        update = graph_frame(head, rows_of(state, "a", keys, 0.25, dim), Codec.INT8)
        assert 2_000_000 < len(update) < 2_100_000
        await sent_in_chunks(made, "a", update)
        assert made.link.receipts("a")[-1].status == "accepted"
        await made.until(lambda: made.app.driver.state.version == 1)
        again = made.app.model.limits(await made.app.model.state())
        assert again == limits, "rows of devices make no room for larger updates"


def more_rows(elements: int) -> dict[str, np.ndarray]:
    return {"rows/more": np.zeros((elements, 1), np.float32)}


async def test_a_device_with_more_entities_than_the_task_allows_is_refused_and_told(tmp_path) -> None:
    task = graph_task(graph={"max_entities": 4}, min_devices=1)
    async with graph_bench(tmp_path, task) as made:
        await gateways_online(made, "a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, await graph_update(made, "a", things(*"vwxyz"), 1.0))
        refused = made.link.receipts("a")[-1]
        assert (refused.reason, "5 entity keys, at most 4" in refused.detail) == ("too_large", True)
        await deliver_rows(made, "a", things(*"vwxy"), 1.0)
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, await graph_update(made, "a", things("z"), 1.0))
        assert "(graph.max_entities)" in made.link.receipts("a")[-1].detail


def test_a_version_with_rows_of_every_device_there_may_be_can_be_offered_and_salvaged(tmp_path) -> None:
    blobs = BlobStore(tmp_path)
    ref = blobs.put(b"rows")
    largest = BlobRef(digest=ref.digest, size=MAX_BLOB_BYTES)
    names = [f"rows/{n:04}{'x' * 60}" for n in range(4096)]
    manifest = Manifest(
        task="things", method="mmfed3_hide", version=7, parent="a" * 64, blobs=dict.fromkeys(names, largest)
    )
    data = messages.encode(manifest)
    assert MAX_MESSAGE_BYTES < len(data) <= MAX_MANIFEST_BYTES
    Offer(task="things", round=8, base="a" * 64, base_size=len(data), closes_in_s=1)
    there = blobs.put(data)
    assert newest_manifest(blobs, TASK)[0] == there.digest


def test_what_the_coordinator_cannot_do_of_a_task_on_graphs_is_said_at_the_start(tmp_path) -> None:
    settings = load_settings(written(tmp_path))
    task, spec = load_task(settings)
    assert (task.modality_names, spec.kind.noun) == (("text",), "triples")
    found = json.loads(
        CliRunner()
        .invoke(coordinator, ["check", "-c", str(tmp_path / "coordinator.toml"), "--format", "json"])
        .stdout
    )
    assert (found["learns_from"], found["modalities"], found["classes"]) == ("triples", ["text"], 0)
    with pytest.raises(Misconfigured, match=r"evaluation\.data: task 'things' is of knowledge graphs"):
        load_task(load_settings(written(tmp_path, '[evaluation]\ndata = "held_out.npz"\n')))
    robust = TOML + '[robust]\nfold = "median"\n'
    with pytest.raises(Misconfigured, match=r"task\.toml: .*robust\.fold = 'median'"):
        load_task(load_settings(written(tmp_path, task=robust)))
    many = TOML.replace("[graph]", "[graph]\nmax_entities = 400_000")
    load_task(load_settings(written(tmp_path, task=many)))
    with pytest.raises(Misconfigured, match=r"graph\.max_entities: .* a device reads at most 67108864"):
        load_task(load_settings(written(tmp_path, task=many.replace("dim = 8", "dim = 128"))))


def test_a_folder_stays_the_same_fleets_when_its_graphs_may_grow(tmp_path) -> None:
    settings = settings_for(tmp_path, 1)
    with Database(tmp_path / "c.sqlite3") as store:
        own_task(store, TASK, settings)
        check_owner(store, graph_task(graph={"max_entities": 9000, "top_k": 3}, min_devices=2), settings)
        other = graph_task(graph={"features": [{"name": "text", "dim": 4}]}, min_devices=2)
        with pytest.raises(Misconfigured, match=r"graph differs from what"):
            check_owner(store, other, settings)


async def test_gateways_are_able_by_their_triples(tmp_path) -> None:
    task = graph_task(min_devices=3, min_windows=5)
    assert requirements_of(task, "").noun == "triples"
    async with graph_bench(tmp_path, task) as made:
        await gateways_online(made, "a", "b")
        await gateways_online(made, "young", triples=3)
        await gateways_online(made, "small", roles=("prototype",))
        why = made.app.driver.why()
        families = {one.name: one for one in _Collector(made.app.measured).collect()}
        assert made.app.encoder_models.offered() == {}
        assert "features" not in made.app.jobs.done
    assert "young (3 of 5 triples)" in why
    assert "small (no role train; method 'mmfed3_hide' has no use for role prototype)" in why
    coverage = {tuple(s.labels.values()): s.value for s in families["lichen_coverage"].samples}
    assert coverage == {("text", ""): 4.0}


def test_a_selection_covers_features_and_draws_where_there_are_none() -> None:
    some = {"a": {"text": (5,), "image": (0,)}, "b": {"text": (5,), "image": (2,)}, "c": {}}
    chosen = policy("coverage").choose(SelectionInput(some, 1, 0))
    assert chosen.why == {"b": "covers image, text"}
    none = policy("coverage").choose(SelectionInput({"a": {}, "b": {}, "c": {}}, 2, 0))
    assert set(none.why.values()) == {"drawn at random"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": 5_000_001}, "1 to 5000000 triples"),
        ({"counts": {"text": (2, 2)}}, "2 classes; the task has 1"),
        ({"counts": {"text": (11,)}}, "11 triples in all"),
        ({"counts": {"text": (9,)}}, "leaves 5.0 of them"),
    ],
)
def test_a_header_counts_triples(change, words) -> None:
    check_header(TASK, "a", graph_header("a", 1, "0" * 64))
    with pytest.raises(Refused, match=words) as caught:
        check_header(TASK, "a", graph_header("a", 1, "0" * 64, **change))
    assert caught.value.reason is Reason.OUT_OF_BOUNDS


def test_the_mean_of_what_devices_report_goes_by_samples_and_knows_no_order() -> None:
    told = [(3, {"mrr": 0.1, "x": 1.0}), (1, {"mrr": 0.7}), (7, {}), (2, {"mrr": 0.3})]
    assert weighted_mean(("mrr", "hits1"), told) == {"mrr": pytest.approx((0.3 + 0.7 + 0.6) / 6)}
    assert weighted_mean(("mrr",), told) == weighted_mean(("mrr",), told[::-1])
    assert weighted_mean(("mrr",), [(1, {"mrr": 1e308}), (1, {"mrr": 1e308})]) == {"mrr": 1e308}
    assert weighted_mean(("mrr",), []) == {}


async def test_the_operator_reads_what_devices_report(tmp_path) -> None:
    file = str(written(tmp_path))
    async with graph_bench(tmp_path, TASK) as made:
        await first_round(made)
        await made.phase("collecting")
        table = CliRunner().invoke(coordinator, ["history", "-c", file]).stdout
        explained = CliRunner().invoke(rounds, ["explain", "-c", file, "-r", "1"]).stdout
    assert "mrr 0.400" in table
    assert "a: every eligible device takes part; delivered (loss 2, " in explained
