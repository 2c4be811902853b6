"""One real run of the study, on made-up windows in UCI-HAR's shapes."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.qqr import run_spec
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts import both
from lichen_lab.benchmarks.studies.qqr.probes import halves, without
from lichen_lab.benchmarks.studies.qqr.settings import STANDARDISED, QqrRun, QqrSetting, StreamConditions
from lichen_lab.benchmarks.study.federation import Federation
from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.streams import Evolving
from lichen_lab.simulation.training.engine import RoundRecord
from tests.support.lab.qqr_study import PROBES, SENSORS, made_split, tiny

SPLITS = {"train": made_split((1, 3, 5), 0), "test": made_split((2, 4), 1)}


@pytest.fixture(autouse=True)
def _made_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(_name: str, part: Part) -> DataSplit:
        return SPLITS[part]

    monkeypatch.setattr(run_spec, "_loaded", loaded)


def test_bench_qqr_a_run_is_the_same_again_and_answers_its_probes() -> None:
    setting = QqrSetting(v.quantity(v.PNR))
    asked = tiny(QqrRun(setting=setting, conditions=v.HALF, probes=("dead_sensor", "fillings", "personal")))
    first, second = run_spec.run(asked), run_spec.run(replace(asked, probes=()))
    assert (first.curve, first.bytes_up) == (second.curve, second.bytes_up)
    assert list(first.curve) == [2]
    assert first.bytes_at[2] == sum(first.bytes_up.values())
    assert len(first.recall_K) == 6
    assert fmean(first.recall_K) == pytest.approx(first.curve[2]), "as many windows of each class"
    assert first.refused == 0
    assert {name: sorted(found) for name, found in first.probes.items()} == {
        name: sorted(PROBES[name]) for name in asked.probes
    }
    assert second.probes == {}


def test_bench_qqr_methods_of_one_seed_begin_with_the_same_model_and_windows() -> None:
    fleets = [
        run_spec.fleet_of(tiny(QqrRun(setting=QqrSetting(v.quantity(method)), conditions=flow)))
        for flow, method in ((v.CLEAN, v.FC), (v.HALF, v.PNR), (v.noisy(0.0), v.IS))
    ]
    held = [[device.stream.at(2).y_B.tolist() for device in fleet] for fleet in fleets]
    assert held[0] == held[1] == held[2]
    other = run_spec.fleet_of(tiny(QqrRun(seed=1)))
    assert [device.stream.at(2).y_B.tolist() for device in other] != held[0]


def test_bench_qqr_the_online_loss_is_of_each_rounds_model_before_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = tiny(QqrRun(setting=QqrSetting(v.quantity(v.PNR)), conditions=both.flow(0.0)))
    asked = replace(asked, probes=("online_loss",))
    before = run_spec.before_faults(run_spec.fleet_of(asked), 2)
    assert before.present_BM.all()
    assert (before.quality_BM == 1).all()
    held = [device.stream.at(2) for device in run_spec.fleet_of(asked)]
    assert before.y_B.tolist() == [label for windows in held for label in windows.y_B.tolist()]

    evaluated: list[float] = []

    class Recorded(Federation):
        def round(self, round_: int) -> RoundRecord:
            windows = run_spec.before_faults(self.devices, round_)
            evaluated.append(self.site.client.evaluate(self.task, windows, self.state).metrics["loss"])
            return super().round(round_)

    monkeypatch.setattr(run_spec, "Federation", Recorded)
    found = run_spec.run(asked)
    assert found.probes["online_loss"] == pytest.approx({"1": evaluated[0], "2": sum(evaluated)})
    assert evaluated[0] == pytest.approx(np.log(6), rel=0.3), "an untrained model knows nothing"
    assert run_spec.run(replace(asked, probes=())).curve == found.curve


def test_bench_qqr_tuning_never_meets_the_test_people() -> None:
    for seed in range(4):
        tuned = QqrRun(seed=seed, tuning=True)
        train, test = run_spec.split(tuned, "train"), run_spec.split(tuned, "test")
        people = [set(part.person_B.tolist()) for part in (train, test)]
        assert people[0] | people[1] == {1, 3, 5}
        assert not people[0] & people[1]
        assert len(people[1]) == 1
        assert len(run_spec.judged_on(tuned)) == len(test)
        for device in run_spec.fleet_of(tiny(tuned)):
            assert isinstance(device.stream, Evolving)
            assert np.array_equal(device.stream.pool.x[SENSORS[0]], train.windows.x[SENSORS[0]])


def test_bench_qqr_standardised_inputs_are_the_same_windows_in_another_scale() -> None:
    plain, scaled = QqrRun(), QqrRun(fleet=STANDARDISED.name)
    assert scaled.dataset == "UCI-HAR, standardised"
    assert [m.name for m in run_spec.task_of(scaled).modalities] == list(SENSORS)
    for one, other in zip(
        run_spec.task_of(plain).modalities, run_spec.task_of(scaled).modalities, strict=True
    ):
        assert (one.offset, one.scale) == (0.0, 1.0)
        assert other.scale < 1.0
        assert one.model_copy(update={"offset": other.offset, "scale": other.scale}) == other
    tinies = [tiny(replace(one, setting=QqrSetting(v.quantity(v.FC)))) for one in (plain, scaled)]
    assert run_spec.run(tinies[0]).curve != run_spec.run(tinies[1]).curve


def test_bench_qqr_no_training_device_holds_the_unseen_class_and_prototype_devices_do() -> None:
    flow = StreamConditions(unseen_class=4, prototype_devices=1)
    fleet = run_spec.fleet_of(tiny(QqrRun(conditions=flow)))
    holds = {device.name: 4 in device.stream.at(1).y_B for device in fleet}
    assert holds == {"d0": False, "d1": False, "p0": True}
    assert [device.role for device in fleet] == ["train", "train", "prototype"]
    assert len({device.number for device in fleet}) == 3, "two devices would train in the same order"


@pytest.mark.long
def test_bench_qqr_prototype_devices_alone_can_teach_a_class() -> None:
    setting, flow = QqrSetting(v.quantity(v.PNR)), StreamConditions(unseen_class=4)
    before = tiny(QqrRun(setting=setting, conditions=flow, probes=("unseen_class",)))
    after = replace(before, conditions=replace(before.conditions, prototype_devices=1))
    found = [run_spec.run(each) for each in (before, after)]
    assert sorted(found[1].probes["unseen_class"]) == sorted(PROBES["unseen_class"])
    recall = [outcome.probes["unseen_class"]["recall, with"] for outcome in found]
    assert recall[0] == 0.0
    assert found[1].probes["unseen_class"]["recall, without"] == 0.0
    assert recall[1] > 0.0, "nobody learned it"
    assert found[1].bytes_up["head"] == found[0].bytes_up["head"], "a prototype device sent a model"


def test_bench_qqr_a_task_of_one_sensor_has_its_windows_alone() -> None:
    alone = tiny(QqrRun(setting=QqrSetting(v.quantity(v.FC), modalities=("gyroscope",))))
    task, windows = run_spec.task_of(alone), run_spec.split(alone, "test").windows
    assert task.modality_names == ("gyroscope",)
    assert set(task.network.encoders) == {"gyroscope"}
    assert windows.present_BM.shape == (len(windows), 1)
    assert np.array_equal(windows.x["gyroscope"], SPLITS["test"].windows.x["gyroscope"])
    assert set(run_spec.run(alone).bytes_up) >= {"encoder/gyroscope", "head"}


def test_bench_qqr_a_dead_sensor_leaves_nothing_of_its_values() -> None:
    windows = without(SPLITS["test"].windows, SENSORS[0])
    assert not windows.x[SENSORS[0]].any()
    assert windows.present_BM.tolist() == [[False, True]] * len(windows)


def test_bench_qqr_what_a_person_is_judged_on_overlaps_nothing_that_was_learned() -> None:
    split = SPLITS["test"]
    own, other = halves(split, 2)
    every = split.of_person(2).windows.x[SENSORS[0]][:, 0, 0].tolist()
    places = [
        sorted(every.index(value) for value in part.x[SENSORS[0]][:, 0, 0].tolist()) for part in (own, other)
    ]
    assert not set(places[0]) & set(places[1])
    # Windows of the archive overlap by half: the neighbour of a learned one is not judged.
    same_class = [(a, b) for a in places[0] for b in places[1] if a // 10 == b // 10]
    assert min(b - a for a, b in same_class) >= 2
    assert set(own.y_B.tolist()) == set(other.y_B.tolist()) == set(range(6))


def test_bench_qqr_a_small_run_is_judged_on_some_windows_and_a_whole_one_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(run_spec.judged_on(QqrRun())) == len(SPLITS["test"])
    monkeypatch.setattr(run_spec, "_SMALL_TEST", 50)
    assert len(run_spec.judged_on(QqrRun(small=True))) == 50
