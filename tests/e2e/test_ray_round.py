"""A real coordinator whose Ray cluster vanishes in mid-fold: a visible wait, and the version as without."""

import shutil
import subprocess

import pytest

from coordinator.status import history
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.simulation.processes.fleet_files import write_toml
from lichen_lab.simulation.processes.process import ONE_THREAD
from lichen_lab.simulation.processes.testbed import COORDINATOR, lichen
from protocol.errors import LichenError
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from tests.support.ray_head import RayHead

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.long

DEVICES = ("left", "right")
TASK = Task(
    name="waiting",
    labels=("a", "b"),
    modalities=(Modality(name="acc", channels=2, rate_hz=20),),
    window=Window(length_s=1.6, stride_s=0.8),
    network=Network(encoders={"acc": Encoder(width=4, depth=1)}, feature_dim=4, hidden_dim=4),
    rounds=Rounds(count=2, deadline_s=300, min_devices=2, min_windows=20, quorum=1.0),
    config={"quality": "none"},
)


def found(state_dir):
    """What the coordinator's folder says; nothing before it has one."""
    try:
        return history.read(state_dir)
    except LichenError:
        return {"version": -1}


def waits(fleet):
    """What ``lichen coordinator status --why`` prints."""
    words = lichen("coordinator", "status", "--why", "--config", str(fleet.files.config(COORDINATOR)))
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stdout


def waits_for_the_cluster(fleet, address):
    said = waits(fleet)  # between two looks it tries again, and says something else
    return all(words in said for words in (address, "no Ray head answers", "retry"))


def manifest_of(state_dir, version):
    return found(state_dir)["versions"][version]["manifest"]


@pytest.fixture
def head():
    one = RayHead()
    one.start()
    yield one
    one.close()


@pytest.fixture
def fleet():
    with ProcessFleet(TASK) as made:
        made.broker()
        yield made


def test_a_round_outlives_the_cluster_that_folds_it(head, fleet):
    state, twin = fleet.files.state(COORDINATOR), fleet.files.state("twin")
    tables = {"export": {"enabled": False}, "spread_s": 0.0, "worker": {"idle_s": 600}}
    fleet.coordinator(env=ONE_THREAD, compute={"ray": head.address}, **tables)
    fleet.until(lambda: found(state)["version"] == 0, 120, "the first version, made on the cluster")
    head.pause()  # so that the fold is not over before the cluster is gone
    for seed, name in enumerate(DEVICES):
        file = noise_recording(fleet.root / f"{name}.npz", TASK, 60, seed=seed)
        fleet.agent(name, file, speed=40, env=ONE_THREAD, infer={"enabled": False}, state_every_s=1.0)
    fleet.until((state / "jobs" / "fold").is_dir, 240, "the fold of round 1 is on the cluster")
    head.kill()
    fleet.until(
        lambda: waits_for_the_cluster(fleet, head.address), 120, "a visible wait, and what comes then"
    )
    assert found(state)["version"] == 0
    assert fleet.pid(COORDINATOR), "the daemon goes on"
    shutil.copytree(state, twin)  # with the round's updates, and without a cluster
    head.start()
    fleet.until(lambda: found(state)["version"] == 2, 240, "both rounds are folded")

    nowhere = {"host": "127.0.0.1", "port": 1}
    settings = fleet.files.coordinator(**tables) | {"state_dir": str(twin), "mqtt": nowhere}
    write_toml(fleet.files.config("twin"), settings)
    fleet.start(
        "twin", lichen("coordinator", "serve", "--config", str(fleet.files.config("twin"))), ONE_THREAD
    )
    fleet.until(lambda: found(twin)["version"] == 1, 120, "the same round, folded in one process")
    assert manifest_of(state, 1) == manifest_of(twin, 1)
    told = found(state)
    assert [one["counted"] for one in told["rounds"]] == [sorted(DEVICES)] * 2
    assert told["refusals"] == []
