"""Real daemons whose devices complete graphs: rounds, restarts, growth; every byte is searched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from coordinator.status import history
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.model_registry import ModelRegistry
from edge_agent.identity import fleet_secret
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from models.knowledge_graph.data.files import FeatureTable, write_features, write_triples
from models.knowledge_graph.data.keys import RELATIONS, key
from models.tensors import read_npz
from protocol.errors import LichenError
from protocol.frames.tensors import Codec, encode
from protocol.tasks.links import Uplink
from protocol.tasks.options import Features as Modality
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore
from tests.support.network.brokers import embedded, mosquitto_path, mosquitto_process
from tests.support.network.tap import Tap

LIMIT_S = 60.0
ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ROUNDS, DIM, WIDTH, CODES = 6, 16, 8, 8
"""``CODES``: so many values of a row are looked for, as many bytes where they are quantized."""
TASK = Task(
    name="house",
    method="mmfed3_hide",
    graph=KnowledgeGraphTask(
        features=(Modality(name="text", dim=WIDTH),), max_entities=200, max_triples=5000
    ),
    rounds=Rounds(count=ROUNDS, deadline_s=60, min_devices=2, min_windows=50),
    uplink=Uplink(codec="int8"),
    config={"dim": DIM, "epochs": 2, "batch": 128, "negatives": 8, "warmup_rounds": 1, "rows_share": 0.5,
            "validation": 0.1},
)  # fmt: skip
RELATION_NAMES = {
    "left": ("stands_inside", "is_heated_by"),
    "right": ("belongs_to_floor", "is_looked_after_by"),
}
SHARED = tuple(f"shared_thing_{n:02d}" for n in range(12))


def facts(name: str, count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Facts of a device's own relations, about things of its own and shared ones, with a pattern in them."""
    rng = np.random.default_rng(seed)
    things = (*SHARED, *(f"{name}_thing_{n:02d}" for n in range(20)))
    found = {}
    while len(found) < count:
        head, relation = rng.integers(len(things)), rng.integers(2)
        tail = (head + 1 + 3 * relation + rng.integers(3)) % len(things)
        found[things[head], RELATION_NAMES[name][relation], things[tail]] = None
    return list(found)


def site(folder: Path, name: str) -> dict:
    """The files of a device, and its ``[graph]``."""
    folder.mkdir()
    write_triples(folder / "facts.tsv", facts(name, 120))
    things = sorted({one for head, _, tail in facts(name, 120) for one in (head, tail)})[::2]
    values = np.random.default_rng(len(name)).normal(size=(len(things), WIDTH)).astype(np.float32)
    write_features(folder / "text.npz", FeatureTable(tuple(things), values))
    return {
        "triples": [str(folder)],
        "features": {"text": str(folder / "text.npz")},
        "secret_file": str(folder.parent / "fleet.secret"),
        "poll_s": 0.2,
    }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[ProcessFleet, Tap]]:
    """Everything goes through the tap; Mosquitto where it is installed."""
    broker = (mosquitto_process(tmp_path / "broker") if mosquitto_path() else embedded(tmp_path)).start()
    try:
        with Tap(broker.port) as tap, ProcessFleet(TASK, tap.port) as made:
            yield made, tap
    finally:
        broker.stop()


def found(state: Path) -> dict:
    """What the coordinator's folder says; nothing before it has one."""
    try:
        return history.read(state)
    except LichenError:
        return {"version": -1}


def forms(table: np.ndarray) -> Iterator[bytes]:
    """Of rows whose first values all differ, these values as bytes of every codec they might travel in.

    Codecs scale by the tensor: by this one, or by a row alone.
    """
    rows = table.reshape(-1, table.shape[-1]).astype(np.float32)
    codecs = ((Codec.FLOAT32, 4), (Codec.FLOAT16, 2), (Codec.INT8, 1))
    whole = {
        codec: np.frombuffer(encode(rows, codec).data, np.uint8).reshape(len(rows), -1) for codec, _ in codecs
    }
    for r, row in enumerate(rows):
        if len(np.unique(row[:CODES])) == CODES:
            yield row[:CODES].astype("<f2").tobytes()
            for codec, size in codecs:
                yield whole[codec][r, : CODES * size].tobytes()
                yield encode(row, codec).data[: CODES * size]


@pytest.mark.long
def test_devices_complete_their_graphs_through_restarts_and_nothing_private_passes(
    fleet: tuple[ProcessFleet, Tap],
) -> None:
    made, tap = fleet
    root = made.root
    hidden = fleet_secret.make(root / "fleet.secret")
    state = made.coordinator(export={"enabled": False}, offer_every_s=0.5, spread_s=0.2)
    for name in RELATION_NAMES:
        graph = site(root / f"files-{name}", name)
        made.agent(name, Path("none"), speed=1, source=[], graph=graph, env=ENV,
                   infer={"enabled": False}, state_every_s=0.3)  # fmt: skip
    private: list[dict[str, np.ndarray]] = []
    seen: set[tuple[str, int]] = set()

    def reached(version: int) -> bool:
        """Meanwhile, keep what the devices keep to themselves."""
        for name in RELATION_NAMES:
            file = made.files.state(name) / "private" / f"{TASK.name}.npz"
            if file.is_file() and (now := (name, file.stat().st_mtime_ns)) not in seen:
                seen.add(now)
                private.append(read_npz(file))
        return found(state)["version"] >= version

    made.until(lambda: reached(2), LIMIT_S, "two versions")
    for name in ("left", "coordinator"):
        made.kill(name)
    more = [one for one in facts("right", 150, seed=1) if one not in facts("right", 120)]
    write_triples(root / "files-right" / "more.tsv", [*more, ("a_new_thing", "belongs_to_floor", SHARED[0])])
    killed_at = found(state)["version"]
    assert killed_at < ROUNDS
    made.start("coordinator", env=ENV)
    made.start("left", env=ENV)
    made.until(lambda: reached(ROUNDS), LIMIT_S, "all versions, after the restarts")

    told = found(state)
    assert told["refusals"] == []
    assert [one["counted"] for one in told["rounds"]] == [["left", "right"]] * ROUNDS
    samples = [{update["device"]: update["samples"] for update in one["updates"]} for one in told["rounds"]]
    assert {one["left"] for one in samples} == {120}
    assert samples[0]["right"] == 120
    assert samples[-1]["right"] == 120 + len(more) + 1, "what came later is learned from, without a restart"
    assert all(0 < version["metrics"]["mrr"] <= 1 for version in told["versions"][1:]), (
        "as the devices report"
    )
    losses = [
        one["metrics"]["loss"]
        for turn in told["rounds"]
        for one in turn["updates"]
        if one["device"] == "left"
    ]
    assert losses[-1] < losses[0], losses
    blobs = BlobStore(state / "blobs")
    with Database(state / DATABASE, read_only=True) as store:
        manifest = ModelRegistry(store, blobs, TASK).manifest(told["versions"][-2]["manifest"])
    assert set(manifest.blobs) == {"projection/text", "rows/left", "rows/right"}

    streams = tap.streams()
    assert passed(streams, [key(hidden, name) for name in SHARED]) == len(SHARED), "keys of entities do pass"
    assert passed(streams, [blobs.get(manifest.blobs["rows/left"].digest)[-200:-100]]) == 1, "and their rows"
    assert passed(streams, written(hidden)) == 0
    for name in RELATION_NAMES:
        values = np.load(root / f"files-{name}" / "text.npz")["values"]
        assert passed(streams, forms(values)) == 0
    assert len(private) > ROUNDS, "of both devices, in several rounds"
    found_in = {name: passed(streams, shapes) for name, shapes in learned(private).items()}
    assert {name: count for name, count in found_in.items() if count} == {}
    assert "own/relations" in found_in
    assert any("imputer" in name for name in found_in), sorted(found_in)


def written(hidden: bytes) -> list[bytes]:
    """Names, keys of relations, and the secret."""
    things = [f"{one}_thing_{n:02d}" for one in RELATION_NAMES for n in range(20)]
    relations = [relation for both in RELATION_NAMES.values() for relation in both]
    names = [one.encode() for one in (*SHARED, "a_new_thing", *things, *relations)]
    return [*names, *(key(hidden, one, RELATIONS) for one in relations), hidden, hidden.hex().encode()]


def learned(private: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[bytes]]:
    """By name, what stays of what a device has learned: values, and how they changed between rounds."""
    wanted: dict[str, list[bytes]] = {}
    for name in {name for one in private for name in one if is_secret(name)}:
        held = [one[name] for one in private if name in one]
        pairs = [(a, b) for at, a in enumerate(held) for b in held[at + 1 :] if a.shape == b.shape]
        tensors = [one for one in (*held, *(b - a for a, b in pairs)) if one.ndim > 1]
        wanted[name] = [form for one in tensors if one.shape[-1] >= CODES for form in forms(one)]
    return wanted


def is_secret(name: str) -> bool:
    """Relations, the imputer, fusion. A device's own rows stay, too, but begin as copies of what travels."""
    return name == "own/relations" or (name.startswith("dense/") and ("imputer" in name or "phi" in name))


def passed(streams: list[bytes], wanted: Iterable[bytes]) -> int:
    """How many of these byte strings are in what passed."""
    return sum(any(one in stream for stream in streams) for one in wanted)


def test_the_search_finds_each_form_of_a_tensor() -> None:
    table = np.random.default_rng(0).normal(size=(3, DIM)).astype(np.float32)
    for codec in (Codec.FLOAT32, Codec.FLOAT16, Codec.INT8):
        for sent in (table, table[1]):
            assert passed([b"...." + encode(sent, codec).data], forms(table)) >= 1, (codec, sent.shape)
    other = np.random.default_rng(1).normal(size=(3, DIM)).astype(np.float32)
    assert (
        passed([encode(other, codec).data for codec in Codec if codec is not Codec.UINT8], forms(table)) == 0
    )
