"""Real daemons, secure rounds of methods that need more than a sum: a guided one, and a routed one."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes.testbed import COORDINATOR
from models.data import window_set
from models.data.streams.recording import read
from models.methods.disentafl.routing.blob_names import domains_of
from protocol.secure_aggregation.updates import MASKED
from protocol.tasks.folding import Aggregator, Robust, SecureAggregation
from protocol.tasks.task import Task
from tests.e2e.test_unlabelled_fleet import ONE_THREAD, TASK, found, record

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]
NAMES = ("arm", "left", "right")
"""The first has no gyroscope."""
SECURE = {
    "robust": Robust(outlier_factor=0),
    "secure_aggregation": SecureAggregation(min_devices=3, identities="none", max_lost=0.0),
}
GUIDED = TASK.model_copy(update={**SECURE, "config": {**TASK.config, "weighting": "equal"}})
ROUTED = TASK.model_copy(
    update={
        **SECURE,
        "name": "parts",
        "method": "disentafl",
        "labelled": None,
        "aggregator": Aggregator(),
        "window": TASK.window.model_copy(update={"context_s": None}),
        "config": {"width": 16, "latent": 4, "bottleneck": 2, "tokens": 4, "heads": 2, "hidden": 8}
        | {"batch": 32, "lr": 0.005, "epochs": 2},
    }
)


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[ProcessFleet]:
    with ProcessFleet(request.param) as made:
        made.broker()
        yield made


def trained(fleet: ProcessFleet, task: Task) -> dict:
    """The coordinator's history after two rounds; no frame of the journal tells of a tensor."""
    root = fleet.root
    held_out = windows_of_recording(task, read(record(root / "held.npz", 51, 90.0, labels=True)))
    window_set.save(root / "test.npz", held_out)
    fleet.coordinator(
        evaluation={"data": str(root / "test.npz")}, export={"every_rounds": 1, "int8": False}, spread_s=1.0
    )
    for seed, name in enumerate(NAMES):
        labels = task.method != GUIDED.method
        file = record(root / f"{name}.npz", seed, 240.0, labels=labels, gyr=name != "arm")
        fleet.agent(
            name,
            file,
            speed=40,
            env=ONE_THREAD,
            infer={"enabled": True},
            state_every_s=1.0,
            outbox={"resend_s": 1.0},
            secure_aggregation={"without_identities": True},
        )
    state = fleet.files.state(COORDINATOR)

    def over() -> bool:
        told = found(state)
        made = (*told["exports"], *told.get("bundles", ()))
        return sum(one.get("devices", len(NAMES)) for one in made if one["version"] == 2) == len(NAMES)

    fleet.until(over, 200, "two rounds and a bundle")
    told = found(state)
    assert [version["devices"] for version in told["versions"]] == [[], [*NAMES], [*NAMES]]
    assert [one["phase"] for round_ in told["rounds"] for one in round_["secure"]][-1] == "done"
    frames = b"".join(path.read_bytes() for path in (state / "updates").rglob("*") if path.is_file())
    assert frames.count(MASKED.encode()) >= len(NAMES)
    assert frames.count(b"samples\x00") == frames.count(MASKED.encode()), "no number of windows"
    for word in (b"encoder", b"base/acc", b"accuracy"):
        assert word not in frames
    return told


@pytest.mark.parametrize("fleet", [GUIDED], indirect=True)
def test_a_guided_method_trains_on_the_labelled_windows_after_a_sum_that_nobody_looks_into(
    fleet: ProcessFleet,
) -> None:
    record(fleet.files.config("task").with_name("own.npz"), 50, 60.0, labels=True)
    told = trained(fleet, GUIDED)
    for one in told["rounds"]:
        assert one["weighing"]["weights"] == one["weighing"]["similarity"] == {}
        assert one["weighing"]["metrics"], "the head was trained"
    accuracies = [version["metrics"]["accuracy"] for version in told["versions"]]
    assert accuracies[-1] > max(0.8, accuracies[0]), accuracies


@pytest.mark.parametrize("fleet", [ROUTED], indirect=True)
def test_each_device_of_a_routed_method_gets_the_bundle_of_its_route(fleet: ProcessFleet) -> None:
    told = trained(fleet, ROUTED)
    state = fleet.files.state(COORDINATOR)
    with Database(state / DATABASE, read_only=True) as store:
        said = {row["device"]: row["extra"] for row in store.rows(sa.select(schema.messages))}
    assert said.keys() == set(NAMES)
    assert all(extra.keys() == {"best"} for extra in said.values()), "the domain, and nothing else"
    newest = [one for one in told["bundles"] if one["version"] == 2]
    served = {(tuple(one["modalities"]), domain) for one in newest for domain in domains_of(one["blobs"])}
    reads = {"arm": ("acc",), "left": ("acc", "gyr"), "right": ("acc", "gyr")}
    assert served == {(reads[name], said[name]["best"]) for name in NAMES}
    assert sum(one["devices"] for one in newest) == len(NAMES)
    accuracies = [version["metrics"]["accuracy"] for version in told["versions"]]
    assert accuracies[-1] > accuracies[0], accuracies
