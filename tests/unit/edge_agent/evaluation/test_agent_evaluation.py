"""The device's evaluation: what is counted, bounded and reported; once a version, and again as data grows."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from edge_agent.evaluation.reported import EVALUATION_FILE, MAX_KEPT, SentEvaluation, SentEvaluations
from edge_agent.evaluation.scores import (
    PartScores,
    count,
    evaluated_targets,
    labelled,
    report,
)
from edge_agent.windows.quality.meter import QualityMeter
from edge_agent.windows.store import WindowStore
from edge_agent.windows.workspace import WindowWorkspace, material
from models.contract import WindowSet
from models.data.holdout import WindowUse, rule_of
from models.data.streams.windows import Windower
from protocol.messages import Metric, ModelPointer, decode, encode
from protocol.tasks.evaluation import MAX_CELLS, MAX_ERROR, MAX_PARTS, DeviceEvaluation
from protocol.tasks.holdout import Holdout
from protocol.tasks.task import Target
from protocol.topics import Kind, broadcast_topic
from tests.e2e.test_agent_e2e import DEVICE, ROOT, agent_of, coordinator, write_config
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task
from tests.support.agent.fake_coordinator import FLEET
from tests.support.network.brokers import broker

__all__ = ["broker"]
SPEED = Target(name="speed", kind="regression", scale=2.0)
TASK = toy_task(targets=(SPEED,))


def windows(y, present, speed=None) -> WindowSet:
    present_BM = np.array(present, bool)
    return WindowSet(
        x={"acc": np.zeros((len(y), 3, 128), np.float32), "gyr": np.zeros((len(y), 2, 64), np.float32)},
        present_BM=present_BM,
        quality_BM=np.ones(present_BM.shape, np.float32),
        y_B=np.array(y),
        targets={} if speed is None else {"speed": np.array(speed, np.float32)},
    )


def scored(given, said, speed=None, read=None):
    targets = evaluated_targets(TASK, TASK.objectives)
    answers = {"label": np.eye(3, dtype=np.float32)[said]}
    if speed is not None:
        answers["speed"] = np.array(speed, np.float32)
    scores = {}
    read_BR = given.present_BM if read is None else np.array(read, bool)
    count(scores, targets, given, answers, (TASK.modality_names, read_BR))
    return scores


def test_windows_are_counted_by_the_modalities_that_the_model_read():
    given = windows([0, 1, 1, 2, -1], [[1, 1], [1, 1], [1, 0], [1, 0], [1, 0]], [np.nan, 4, np.nan, 2, 2])
    scores = scored(given, [0, 1, 0, 2, 0], [9, 5, 9, 2, 1000])
    assert scores["acc", "gyr"].confusion == {"label": {(0, 0): 1, (1, 1): 1}}
    assert scores["acc",].confusion == {"label": {(1, 0): 1, (2, 2): 1}}
    assert scores["acc",].windows == 3
    assert scores["acc", "gyr"].errors == {"speed": (1, 0.5, 0.25)}
    assert scores["acc",].errors == {"speed": (2, MAX_ERROR, MAX_ERROR**2)}, "a huge error is cut"


def test_targets_with_other_classes_or_without_labels_are_not_evaluated():
    other = replace_labels(TASK.objectives[0])
    made = Target(name="wave", kind="generation", modality="gyr")
    task = toy_task(targets=(SPEED, made))
    assert evaluated_targets(task, (other, made, SPEED)) == (SPEED,)
    given = windows([0, -1, -1], [[1, 1]] * 3, [np.nan, 1.0, np.nan])
    assert labelled((SPEED,), given).tolist() == [False, True, False]


def replace_labels(target: Target) -> Target:
    return target.model_copy(update={"labels": ("x", "y", "z")})


def test_few_windows_are_not_reported_and_rare_combinations_are_reported_together():
    scores = scored(windows([0] * 12, [[1, 1]] * 8 + [[1, 0]] * 4), [0] * 12)
    assert report(scores, 3, "a" * 64, 13) is None
    found = report(scores, 3, "a" * 64, 5)
    assert [(part.modalities, part.windows) for part in found.parts] == [(("acc", "gyr"), 8), ((), 4)]
    many = {(f"m{n}",): PartScores(10, {"label": scores["acc", "gyr"].confusion["label"]}) for n in range(20)}
    found = report(many, 3, "a" * 64, 5)
    assert len(found.parts) == MAX_PARTS
    assert found.windows == 200 == sum(part.windows for part in found.parts)


def test_a_report_of_many_classes_is_bounded_in_bytes():
    rng = np.random.default_rng(1)
    scores = {}
    for name in ("acc", "gyr"):
        cells = {(int(a), int(b)): 4096 for a, b in rng.integers(0, 1024, (310, 2))}
        scores[name,] = PartScores(1000, {"label": Counter(cells)})
    found = report(scores, 9, "a" * 64, 5)
    assert sum(len(part.confusion["label"]) for part in found.parts) <= MAX_CELLS
    assert len(encode(Metric(device="d" * 56, metrics={}, evaluation=found))) < 16384
    scores["acc",].confusion["label"].update({(1, n): 1 for n in range(MAX_CELLS)})
    assert report(scores, 9, "a" * 64, 5) is None


def test_a_report_of_two_modalities_and_seven_classes_is_small():
    cells = Counter({(a, b): 40 for a in range(7) for b in range(7)})
    scores = {("acc", "gyr"): PartScores(1960, {"label": cells})}
    assert len(encode(Metric(device="kitchen", metrics={}, evaluation=report(scores, 9, "a" * 64, 5)))) < 700


def test_sent_evaluations_survive_a_restart_and_a_damaged_file_is_empty(tmp_path):
    path = tmp_path / EVALUATION_FILE
    sent = SentEvaluations(path)
    for n in range(MAX_KEPT + 3):
        told = DeviceEvaluation.model_validate(
            {"version": n, "bundle": f"{n:064x}", "windows": 1, "parts": [{"windows": 1}]}
        )
        sent.put(SentEvaluation(held_back=5, rule="b" * 64, report=told))
    again = SentEvaluations(path)
    again.read()
    assert again.newest.report.version == MAX_KEPT + 2
    assert again.get(f"{0:064x}") is None
    assert again.get(f"{MAX_KEPT:064x}").held_back == 5
    path.write_text('{"sent": [{"held')
    damaged = SentEvaluations(path)
    damaged.read()
    assert damaged.newest is None


def test_learning_and_readiness_leave_out_what_is_held_back(tmp_path):
    task = toy_task(holdout=Holdout(share=0.4, stretch_s=20.0))
    rng, rule = np.random.default_rng(0), rule_of(task, "d1")
    store = WindowStore(tmp_path, task, 50_000_000, holdout_of="d1")
    starts = 1.28 * np.arange(200)
    given = windows(rng.integers(0, 3, 200), [[1, 1]] * 200)
    marked = {"acc": given.x["acc"] + starts[:, None, None].astype(np.float32), "gyr": given.x["gyr"]}
    store.add(replace(given, x=marked, targets={}), starts)
    sides = [rule.side(start) for start in starts]
    work = _work(task, store)
    _, learned = material(work, 1000, labelled=True)
    seen = {round(float(x), 2) for x in learned.x["acc"][:, 0, 0]}
    assert seen == {round(s, 2) for s, side in zip(starts, sides, strict=True) if side is WindowUse.LEARNING}
    assert work.readiness().samples == sides.count(WindowUse.LEARNING)
    store.commit()
    assert work.readiness().samples == sides.count(WindowUse.LEARNING)
    store.use(toy_task())
    assert store.snapshot().kinds.total() == 200
    assert all(kind.side is WindowUse.LEARNING for kind in store.snapshot().kinds), "it asks for it no more"
    store.close()


def _work(task, store):
    return WindowWorkspace(task, task.modality_names, Windower(task), QualityMeter(task), store)


HELD = toy_task(holdout=Holdout(share=0.5, stretch_s=6.0))


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def announce(fake, number):
    ref = fake.put(bundle(HELD, number))
    said = ModelPointer(task=HELD.name, version=number, bundle=ref, serial=number)
    await fake.link.publish(broadcast_topic(FLEET, Kind.FLEET_MODEL), encode(said), qos=1, retain=True)
    return ref.digest


def told(fake, digest):
    return [m.evaluation for m in fake.metrics if m.evaluation is not None and m.evaluation.bundle == digest]


@asynccontextmanager
async def running(tmp_path, broker, extra):
    config = write_config(tmp_path, broker.port, extra)
    config.write_text(config.read_text().replace("loop = true", "loop = false"))
    async with coordinator(broker) as fake, agent_of(config) as agent:
        await fake.announce(HELD)
        await fake.until(lambda: fake.states and fake.states[-1].windows >= 8)
        yield fake, agent


@pytest.mark.long
async def test_a_version_is_evaluated_once_and_never_again_after_a_restart(tmp_path, broker):
    extra = "[evaluation]\nevery_s = 0.2\nmin_windows = 4\n[deploy.trial]\nwindows = 1\n"
    async with running(tmp_path, broker, extra) as (fake, agent):
        await fake.until(lambda: agent.collector.finished, 30)
        first = await announce(fake, 1)
        await fake.until(lambda: told(fake, first), 30)
        [found] = told(fake, first)
        assert (found.version, found.windows) == (1, agent.status()["windows_held_back"])
        await fake.until(lambda: agent.status()["evaluated"])
        assert agent.status()["evaluated"]["bundle"] == first
        second = await announce(fake, 2)
        await fake.until(lambda: told(fake, second), 30)
        await asyncio.sleep(0.7)
        assert (len(told(fake, first)), len(told(fake, second))) == (1, 1)
        await fake.until((tmp_path / "state" / EVALUATION_FILE).is_file)
    config = tmp_path / "agent.toml"
    config.write_text(config.read_text().replace("speed = 30", "speed = 0.001"))  # no more windows
    async with coordinator(broker) as fake, agent_of(config) as again:
        await fake.until(lambda: again.inference.model is not None, 30)
        await asyncio.sleep(1.0)
        assert not told(fake, second), "the broker had it already"


async def test_a_device_that_does_not_evaluate_learns_from_everything(tmp_path, broker):
    extra = "[evaluation]\nenabled = false\nevery_s = 0.2\n"
    async with running(tmp_path, broker, extra) as (fake, agent):
        await fake.until(lambda: agent.collector.finished, 30)
        digest = await announce(fake, 1)
        await fake.until(lambda: agent.inference.model is not None, 30)
        await asyncio.sleep(0.7)
        assert not told(fake, digest)
        assert agent.status()["windows_to_learn_from"] == agent.status()["labelled_windows"]
        assert "evaluation.enabled is false" in agent.status()["evaluation"]


def test_an_older_coordinator_reads_the_message_without_the_evaluation():
    found = report(scored(windows([0] * 5, [[1, 1]] * 5), [0] * 5), 1, "a" * 64, 1)
    payload = encode(Metric(device=DEVICE, metrics={}, evaluation=found))
    assert decode(payload.replace(b'"evaluation"', b'"of_a_newer_release"'), Metric).evaluation is None
