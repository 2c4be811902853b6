"""Real daemons: devices evaluate versions on held-back windows, and the coordinator has the exact counts."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest

from coordinator.status import history
from edge_agent.evaluation.reported import EVALUATION_FILE
from edge_agent.evaluation.service import held_back
from edge_agent.windows.store import WindowStore
from edge_agent.windows.stored_rows import newest_rows
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from models.contract import WindowSet
from models.data.holdout import WindowUse, rule_of
from protocol.bundle import unpack
from protocol.errors import LichenError
from protocol.tasks.holdout import Holdout
from runtime.storage.blob_store import BlobStore
from tests.e2e.test_prototype_fleet import ONE_THREAD, REST, WALK, WAVE, record, task_of

ROUNDS, DEVICES = 2, ("left", "right")
TASK = task_of(ROUNDS, len(DEVICES)).model_copy(update={"holdout": Holdout(share=0.3, stretch_s=8.0)})
BUDGET = 100_000_000


@pytest.fixture
def fleet() -> Iterator[ProcessFleet]:
    with ProcessFleet(TASK) as made:
        made.broker()
        yield made


def read(fleet: ProcessFleet) -> dict:
    try:
        return history.read(fleet.files.state("coordinator"))
    except LichenError:
        return {"evaluations": {}, "exports": [], "rounds": []}


def found(fleet: ProcessFleet) -> dict:
    return read(fleet)["evaluations"].get(ROUNDS, {"devices": 0})


def stored(fleet: ProcessFleet, device: str) -> tuple[WindowSet, int]:
    """The held-back windows of a device that does not run, and how many labelled ones it learns from."""
    store, rule = WindowStore(fleet.files.state(device) / "store", TASK, BUDGET), rule_of(TASK, device)

    def ask(db, task):
        rows = [*newest_rows(db, labelled_alone=True)]
        learned = sum(rule.side(row.start) is WindowUse.LEARNING for row in rows)
        return held_back(task, rule, iter(rows), 1024), learned

    windows, learned = store.read(ask)
    store.close()
    return windows, learned


def confusion(bundle: bytes, windows: WindowSet) -> Counter[tuple[int, int]]:
    """By a model in this process, without any code of the device's evaluation."""
    _, files = unpack(bundle)
    session = onnxruntime.InferenceSession(files["model.onnx"], providers=["CPUExecutionProvider"])
    feeds = {name: windows.x[name] for name in TASK.modality_names}
    feeds["present"] = windows.present_BM.astype(np.float32)
    (p_BK,) = session.run(["probabilities"], feeds)
    return Counter(zip(windows.y_B.tolist(), p_BK.argmax(1).tolist(), strict=True))


@pytest.mark.long
def test_history_has_the_counts_of_a_central_evaluation_also_after_a_kill(fleet: ProcessFleet) -> None:
    for seed, device in enumerate(DEVICES):
        file = record(fleet.root / f"{device}.npz", (REST, WALK, WAVE), seed)
        evaluation = {"every_s": 1.0, "min_windows": 5}
        fleet.agent(
            device, file, speed=60, env=ONE_THREAD, evaluation=evaluation, infer={"variant": "float32"},
            state_every_s=1.0, task_file=str(fleet.files.config("task")),
        )  # fmt: skip
    for device in DEVICES:
        fleet.until(lambda device=device: "source_ended" in fleet.said(device), 60, "everything is recorded")
    fleet.coordinator(spread_s=0.5, export={"every_rounds": 1, "int8": False})
    fleet.until(lambda: found(fleet)["devices"] == len(DEVICES), 300, "both evaluate the last version")
    before = found(fleet)
    # As if the kill came after the broker had the report and before the device had noted that.
    fleet.kill("left")
    (fleet.files.state("left") / EVALUATION_FILE).unlink()
    config = fleet.files.config("left")
    config.write_text(config.read_text().replace("speed = 60", "speed = 0.001"))  # no more windows
    said = fleet.said("left").count("version_evaluated")
    agent = [sys.executable, "-P", "-m", "lichen", "agent", "run", "--config", str(config)]
    fleet.start("left", agent, ONE_THREAD)
    fleet.until(lambda: fleet.said("left").count("version_evaluated") > said, 120, "it reports again")
    for device in DEVICES:
        fleet.stop(device)
    counts: Counter[tuple[int, int]] = Counter()
    digest = next(one["digest"] for one in read(fleet)["exports"] if one["version"] == ROUNDS)
    bundle = BlobStore(fleet.files.state("coordinator") / "blobs").get(digest)
    learned = {}
    for device in DEVICES:
        windows, learned[device] = stored(fleet, device)
        assert len(windows) > 20
        counts += confusion(bundle, windows)
    after = found(fleet)
    for one in (before, after):
        assert one["devices"] == 2
        matrix = one["confusion"]["label"]["matrix"]
        assert {(t, s): n for t, row in enumerate(matrix) for s, n in enumerate(row) if n} == dict(counts)
    samples = {update["device"]: update["samples"] for update in read(fleet)["rounds"][-1]["updates"]}
    assert samples == learned, "no held-back window was learned from"
    words = ["coordinator", "history", "--config", str(fleet.files.config("coordinator"))]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "lichen", *words], capture_output=True, check=True, text=True, timeout=60
    ).stdout
    assert "on devices" in shown
    told = subprocess.run(
        [sys.executable, "-P", "-m", "lichen", *words, "--format", "json"],
        capture_output=True, check=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    scores = json.loads(told)["evaluations"][str(ROUNDS)]
    hits = sum(n for (true, predicted), n in counts.items() if true == predicted)
    assert scores["targets"]["label"]["accuracy"] == pytest.approx(hits / counts.total())
    assert scores["by_modalities"].keys() == {"acc+gyr"}
