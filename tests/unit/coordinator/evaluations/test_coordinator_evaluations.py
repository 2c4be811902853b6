"""Devices' evaluations at the coordinator: checked, replaced, summed, bounded, shown."""

import asyncio
import random

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.evaluations import store as tables
from coordinator.evaluations.checks import require_sound
from coordinator.evaluations.recorder import EvaluationRecorder
from coordinator.evaluations.sums import MAX_SUBSETS, VersionSums
from coordinator.fleet.device_removal import forget_in
from coordinator.status.history import read
from coordinator.status.history_table import evaluated_by_devices
from coordinator.storage import schema
from models.training.evaluation import judge
from protocol import messages
from protocol.errors import Reason, Refused, Transient
from protocol.messages import Metric
from protocol.tasks.evaluation import MAX_EVALUATED, DeviceEvaluation
from protocol.tasks.task import Modality, Target, Task
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task

pytestmark = pytest.mark.both_engines
TASK = Task(
    name="t",
    labels=("a", "b", "c"),
    modalities=(Modality(name="acc", channels=1, rate_hz=10), Modality(name="gyr", channels=1, rate_hz=10)),
    targets=(Target(name="speed", kind="regression", scale=2.0),),
)


def part(modalities, cells, errors=None, windows=None):
    counted = sum(count for _, _, count in cells)
    return {
        "modalities": modalities,
        "windows": windows or counted,
        "confusion": {"label": cells},
        "errors": errors or {},
    }


def report(*parts, version=0, bundle="b" * 64) -> DeviceEvaluation:
    found = {
        "version": version,
        "bundle": bundle,
        "parts": parts,
        "windows": sum(p["windows"] for p in parts),
    }
    return DeviceEvaluation.model_validate(found)


def wrong_sums(windows, count, absolute, squared, target="speed") -> DeviceEvaluation:
    errors = {target: {"windows": count, "absolute": absolute, "squared": squared}}
    return report(part(("acc",), (), errors, windows))


GOOD = part(
    ("acc", "gyr"),
    ((0, 0, 5), (0, 1, 2), (2, 2, 3)),
    {"speed": {"windows": 4, "absolute": 2, "squared": 2}},
)


def test_a_report_of_the_task_is_sound():
    require_sound(TASK, report(GOOD, part((), ((1, 1, 2),))))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: report(GOOD, GOOD), "twice"),
        (lambda: report(GOOD).model_copy(update={"windows": 11}), "parts do not have 11 windows"),
        (lambda: report(part(("gyr", "acc"), ((0, 0, 5),))), "not inputs of the task"),
        (lambda: report(part(("lidar",), ((0, 0, 5),))), "not inputs of the task"),
        (lambda: report(part(("acc",), ((3, 0, 5),))), "3 classes"),
        (lambda: report(part(("acc",), ((0, 3, 5),))), "3 classes"),
        (lambda: report(part(("acc",), ((0, 0, 5), (0, 0, 5)))), "count is there twice"),
        (lambda: report(part(("acc",), ((0, 0, 5),), windows=4)), "more counts than the 4 windows"),
        (lambda: wrong_sums(1, 1, 0, 0, "label"), "no regression"),
        (lambda: wrong_sums(1, 2, 0, 0), "more errors"),
        (lambda: wrong_sums(1, 1, 101, 1), "over 100"),
        (lambda: wrong_sums(1, 1, 1, 101), "over 100"),
        (lambda: wrong_sums(4, 4, 4, 1), "does not fit"),
    ],
)
def test_a_report_that_cannot_be_is_refused_in_words(wrong, words):
    with pytest.raises(Refused, match=words) as found:
        require_sound(TASK, wrong())
    assert found.value.reason is Reason.MALFORMED


def made_up(rng, version=0) -> DeviceEvaluation:
    """A report with random counts."""
    parts = []
    for modalities in (("acc", "gyr"), ("acc",), ()):
        cells = tuple((t, s, n) for t in range(3) for s in range(3) if (n := rng.randrange(4)))
        if cells:
            count = rng.randrange(1, 3)
            size = rng.random()
            errors = {"speed": {"windows": count, "absolute": count * size, "squared": count * size * size}}
            parts.append(part(modalities, cells, errors))
    return report(*parts, version=version) if parts else made_up(rng, version)


def test_sums_after_replacing_and_removing_are_those_of_a_recount():
    rng, sums, truth = random.Random(4), VersionSums.empty(TASK), {}
    for _ in range(500):
        device = rng.randrange(20)
        if device in truth:
            sums.add(TASK, truth.pop(device), -1)
        if rng.random() < 0.8:
            truth[device] = made_up(rng)
            sums.add(TASK, truth[device])
        sums = VersionSums.of(sums.plain())
    again = VersionSums.empty(TASK)
    for one in truth.values():
        again.add(TASK, one)
    found, wanted = sums.scores(TASK), again.scores(TASK)
    assert found["confusion"] == wanted["confusion"]
    assert found["targets"]["label"] == wanted["targets"]["label"]
    assert found["windows"] == sum(one.windows for one in truth.values())
    assert found["targets"]["speed"]["mae"] == pytest.approx(wanted["targets"]["speed"]["mae"])


def test_the_scores_are_those_of_the_coordinators_own_evaluation():
    rng = np.random.default_rng(1)
    true_B, said_B = rng.integers(0, 3, 200), rng.integers(0, 3, 200)
    cells = tuple((t, s, int(((true_B == t) & (said_B == s)).sum())) for t in range(3) for s in range(3))
    sums = VersionSums.empty(TASK)
    sums.add(TASK, report(part(("acc",), cells)))
    own = judge(true_B, np.eye(3, dtype=np.float32)[said_B])
    found = sums.scores(TASK)
    assert found["targets"]["label"]["accuracy"] == pytest.approx(own.metrics["accuracy"])
    assert found["targets"]["label"]["macro_f1"] == pytest.approx(own.metrics["macro_f1"])
    assert found["confusion"]["label"]["matrix"] == own.confusion_KK
    assert set(found["by_modalities"]) == {"acc"}


def test_invented_combinations_do_not_make_the_sums_grow():
    names = [f"m{n}" for n in range(12)]
    task = TASK.model_copy(
        update={"modalities": tuple(Modality(name=n, channels=1, rate_hz=10) for n in names)}
    )
    rng, sums, given = random.Random(2), VersionSums.empty(task), []
    for _ in range(400):
        subset = tuple(n for n in names if rng.random() < 0.5)
        given.append(report(part(subset, ((0, 0, 1),))))
        sums.add(task, given[-1])
    assert len(sums.parts) <= MAX_SUBSETS + 1
    assert sums.scores(task)["windows"] == 400
    for one in rng.sample(given, len(given)):
        sums.add(task, one, -1)
    assert all(not part.windows for part in sums.parts.values())


def payload(device, evaluation) -> bytes:
    return messages.encode(Metric(device=device, metrics={}, evaluation=evaluation))


def toy(version=0, right=3, wrong=1) -> DeviceEvaluation:
    """Of the task of :func:`tiny_task`."""
    return report(part(("acc",), ((0, 0, right), (1, 0, wrong))), version=version)


def _of(made, kind):
    return next(part for part in made.app.measured if isinstance(part, kind))


async def test_history_shows_the_sums_and_a_report_replaces_the_former_one(tmp_path):
    async with bench(tmp_path, tiny_task()) as made:
        await made.online("a", "b")
        await made.give("a", Kind.METRIC, payload("a", toy(right=30, wrong=0)))
        await made.give("a", Kind.METRIC, payload("a", toy()))
        await made.give("b", Kind.METRIC, payload("b", toy(right=6, wrong=0)))
        await made.give("ghost", Kind.METRIC, payload("ghost", toy(right=100)))
        await made.give("b", Kind.METRIC, payload("b", toy(version=7)))  # there is no such version
        found = read(made.app.settings.location)["evaluations"]
        assert list(found) == [0]
        assert (found[0]["devices"], found[0]["windows"]) == (2, 10)
        assert found[0]["targets"]["label"]["accuracy"] == pytest.approx(0.9)
        assert found[0]["confusion"]["label"]["matrix"] == [[9, 0], [1, 0]]
        assert [(one["device"], one["windows"]) for one in found[0]["of_devices"]] == [("a", 4), ("b", 6)]
        assert evaluated_by_devices(found[0]).splitlines()[-1] == "2 devices, 10 windows"
        by_name = {one.name: one.values[0][1] for one in _of(made, EvaluationRecorder).metrics()}
        assert by_name["lichen_device_evaluation_accuracy"] == pytest.approx(0.9)
        assert by_name["lichen_device_evaluation_devices"] == 2
        made.app.forgetting.forget(["a"])
        await made.until(lambda: read(made.app.settings.location)["evaluations"][0]["devices"] == 1)
        assert read(made.app.settings.location)["evaluations"][0]["confusion"]["label"]["matrix"] == [
            [6, 0],
            [0, 0],
        ]
        assert made.app.storage.store.rows(sa.select(schema.refusals)) == []


async def test_hostile_reports_are_refused_and_change_nothing(tmp_path):
    async with bench(tmp_path, tiny_task()) as made:
        await made.online("a")
        wrong = toy().model_dump(mode="json")
        wrong["parts"][0]["confusion"]["label"] = [[9, 9, 4]]
        text = '{"kind":"metric","device":"a","metrics":{},"evaluation":%s}'
        negative = text % toy().model_dump_json().replace("[0,0,3]", "[0,0,-3]")
        huge = text % toy().model_dump_json().replace('"windows":4', f'"windows":{MAX_EVALUATED + 1}')
        for content in (
            payload("a", DeviceEvaluation.model_validate(wrong)),
            negative.encode(),
            huge.encode(),
        ):
            await made.give("a", Kind.METRIC, content)
        await made.give("a", Kind.METRIC, payload("a", toy()).ljust(17_000))
        assert made.refusals() == {("a", "malformed"): 3, ("a", "too_large"): 1}
        assert read(made.app.settings.location)["evaluations"] == {}
        assert made.app.access.denial("a") is None, "what a device says of itself is no offence"


async def test_old_versions_keep_their_sums_and_take_no_report_twice(tmp_path):
    task = tiny_task()
    async with bench(tmp_path, task) as made:
        store = made.app.storage.store
        [row] = store.rows(sa.select(schema.versions))
        store.put_all(schema.versions, [{**row, "version": version} for version in range(1, 12)])
        for version in range(12):
            # only versions 2 and 3 ran on many devices
            devices = [f"d{n}" for n in range(5 if version in {2, 3} else 1)]
            given = {(version, device): (1.0, toy(version)) for device in devices}
            assert tables.write(store, task, given, 100) == len(devices)
        kept = {row["version"] for row in store.rows(sa.select(schema.evaluations.c.version))}
        assert kept == {2, 3, 8, 9, 10, 11}
        assert tables.write(store, task, {(5, "d0"): (2.0, toy(5))}, 100) == 0, "it would count twice"
        assert tables.read(store, task, [5])[5]["windows"] == 4
        assert tables.write(store, task, {(3, f"e{n}"): (2.0, toy(3)) for n in range(9)}, 7) == 2, (
            "most devices"
        )
        forget_in(store, "d0")
        found = tables.read(store, task, range(12))
        assert (found[3]["devices"], found[5]["devices"]) == (6, 1)
        assert 11 not in found, "its only device is gone"


async def test_a_device_that_another_process_forgets_between_two_reads_ends_no_service(tmp_path):
    task = tiny_task()
    async with bench(tmp_path, task) as made:
        store = made.app.storage.store
        assert tables.write(store, task, {(0, "d"): (1.0, toy())}, 100) == 1
        assert tables.newest(store, task)[0] == 0

        class OtherProcess:
            """Forgets the device after the first read."""

            @staticmethod
            def rows(query):
                found = store.rows(query)
                tables.remove(store, task, "d")
                return found

        assert tables.newest(OtherProcess(), task) is None


async def test_a_report_of_a_device_that_is_forgotten_while_the_disk_is_full_is_not_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("coordinator.evaluations.recorder._RETRY_S", 0.1)
    async with bench(tmp_path, tiny_task()) as made:
        await made.online("a", "b")
        write, first, loop = tables.write, [True], asyncio.get_running_loop()

        async def forget():
            made.app.forgetting.forget(["a"])

        def full(*given):
            if not first:
                return write(*given)
            asyncio.run_coroutine_threadsafe(forget(), loop).result(30)
            first.clear()
            raise Transient("no space left on the disk")

        monkeypatch.setattr(tables, "write", full)
        await made.give("a", Kind.METRIC, payload("a", toy()))
        await made.until(lambda: not first)
        await made.give("b", Kind.METRIC, payload("b", toy()))
        await made.until(lambda: tables.count_rows(made.app.storage.store, 0))
        rows = made.app.storage.store.rows(sa.select(schema.evaluations.c.device))
        assert [row["device"] for row in rows] == ["b"]
