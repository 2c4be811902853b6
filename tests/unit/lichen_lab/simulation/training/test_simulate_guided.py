"""Simulations of a guided method: views, weights, the fold by them, and what the coordinator trains."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.aggregation.fold import fold_screened, limits_for, screen_round
from coordinator.aggregation.round_fold import finish_seed
from coordinator.storage.update_journal import AcceptedUpdate
from lichen_lab.simulation.cli import app
from lichen_lab.simulation.data import dataset_tasks
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.online_fleet import OnlineSetting
from lichen_lab.simulation.data.streams import Fixed, Unlabelled
from lichen_lab.simulation.training.device import Site, VirtualDevice
from lichen_lab.simulation.training.engine import Engine
from lichen_lab.simulation.training.guided import Guide
from lichen_lab.simulation.training.inputs import of_dataset, of_files
from lichen_lab.simulation.training.runner import History, each_alone, simulate
from lichen_lab.simulation.training.simulated_table import show
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Tensors, Update, WindowSet
from models.data import window_set
from models.guided import ServerTrainer
from models.registry import method
from models.tensors import flatten
from models.worker import update_views
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import MAX_BLOB_BYTES
from protocol.tasks.labelling import Labelled
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.task import Task
from tests.support.lab.simulated import task as any_task
from tests.support.lab.simulated import windows
from tests.support.methods.labelled_files import write_csv
from tests.support.tasks import stream, task_toml

ENCODERS = ("encoder/a", "encoder/b")
NAMES = ("d0", "d1", "d2")


def task(kind: str = "fedavg", **config: object) -> Task:
    options = {"batch": 16, "head_epochs": 5, **config}
    int8 = Uplink(codec="int8")  # three rounds leave no time for error carry
    return any_task(method="tactfl", uplink=int8, config=options, aggregator={"kind": kind, "lr": 0.01})


def unlabelled(seed: int) -> WindowSet:
    return Unlabelled(Fixed(windows(60, seed))).at(1)


def deaf(held: WindowSet) -> WindowSet:
    """Without its second modality."""
    x = {**held.x, "b": np.zeros_like(held.x["b"])}
    return replace(held, x=x, present_BM=held.present_BM & np.array([True, False]))


FLEET = {"d0": unlabelled(0), "d1": unlabelled(1), "d2": deaf(unlabelled(2))}
KNOWN = windows(30, 90)


@pytest.fixture(scope="module")
def history() -> History:
    return simulate(task("fedyogi"), FLEET, windows(90, 50), 3, rounds=3, labelled=KNOWN)


def as_bytes(state: Blobs) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


def test_devices_without_a_label_and_a_coordinator_with_a_few_learn(history: History) -> None:
    assert history.curve()[-1] > 0.7
    assert not any("optimizer" in name for name in history.state), "moments are the coordinator's own"
    for record in history.rounds:
        assert set(record.accepted) == set(NAMES)
        assert set(record.bytes_up) == {*ENCODERS, "frame"}, "no head, no prototype, no feature"
        assert record.trained["head_loss"] > 0
        assert record.weighing is not None
        for encoder, devices in zip(ENCODERS, (NAMES, NAMES[:2]), strict=True):
            shares = record.weighing.weights[encoder]
            assert set(shares) == set(devices), "who lacks a modality has no part in its encoder"
            assert sum(shares.values()) == pytest.approx(1)


def test_the_same_seed_gives_the_same_bytes(history: History) -> None:
    again = simulate(task("fedyogi"), FLEET, windows(90, 50), 3, rounds=3, labelled=KNOWN)
    assert again.rounds == history.rounds
    assert as_bytes(again.state) == as_bytes(history.state)


def test_a_round_is_the_coordinators_own_from_the_journal(tmp_path: Path) -> None:
    frames: dict[str, bytes] = {}

    def kept(name: str, frame: bytes) -> bytes:
        frames[name] = frame
        return frame

    its, seed, trainer = task("fedadam"), 3, method("tactfl").trainer()
    its = its.model_copy(update={"downlink": Downlink(codec="float32")})
    copied = {name: (lambda frame, _, name=name: kept(name, frame)) for name in NAMES}
    made = simulate(its, FLEET, None, seed, rounds=1, labelled=KNOWN, tamper=copied)
    first = method("tactfl").client().initial(its, seed)
    limits = limits_for(first, MAX_BLOB_BYTES)
    entries = []
    for name in reversed(NAMES):
        (tmp_path / name).write_bytes(frames[name])
        entries.append(AcceptedUpdate(name, digest(frames[name]), tmp_path / name))
    its = its.model_copy(update={"rounds": its.rounds.model_copy(update={"count": 1})})
    screen_round(its, entries, limits, {})
    at = [update_views.FrameAt(entry.device, entry.digest, str(entry.path)) for entry in entries]
    seen, refused = update_views.view_updates(trainer, its, KNOWN, first, at, limits)
    assert not refused
    server = method("tactfl").server()
    weighing = server.weigh(its, seen)
    assert weighing == made.rounds[0].weighing
    folded = fold_screened(server, its, 1, first, entries, limits, weighing)
    finished, metrics = trainer.finish(
        its, 1, finish_seed(its.model_copy(update={"seed": seed}), 1), KNOWN, model_of(folded)
    )
    assert as_bytes(finished) == as_bytes(made.state)
    assert metrics == made.rounds[0].trained


@dataclass(frozen=True)
class Picky:
    """The method's trainer, through which some devices cannot be looked at."""

    real: ServerTrainer
    blind: tuple[str, ...] = ()
    spoilt: tuple[str, ...] = ()
    finished: list[int] = field(default_factory=list)

    def view(self, task: Task, labelled: WindowSet, state: Blobs, update: Update) -> Tensors:
        if update.header.device in self.blind:
            raise Refused(Reason.NON_FINITE, "encoder/a: no finite numbers")
        found = self.real.view(task, labelled, state, update)
        spoilt = np.float32(np.nan if update.header.device in self.spoilt else 1)
        return {name: values * spoilt for name, values in found.items()}

    def finish(
        self, task: Task, round_: int, seed: int, labelled: WindowSet, state: Blobs
    ) -> tuple[Blobs, dict[str, float]]:
        self.finished.append(round_)
        return self.real.finish(task, round_, seed, labelled, state)


@pytest.mark.parametrize(
    ("blind", "spoilt", "counted"),
    [(("d0",), (), {"d1", "d2"}), (("d0",), ("d2",), {"d1"}), (NAMES, (), set())],
)
def test_who_has_no_view_is_refused_and_without_updates_there_is_no_version(
    blind: tuple[str, ...], spoilt: tuple[str, ...], counted: set[str]
) -> None:
    its, site = task(), Site(task(), 0)
    start, trainer = site.client.initial(its, 0), Picky(method("tactfl").trainer(), blind, spoilt)
    guide = Guide(its, method("tactfl").server(), trainer, KNOWN, 0)  # type: ignore[arg-type]
    engine = Engine(its, site.server, {}, None, guide=guide)
    fleet = [VirtualDevice(name, Fixed(held), number) for number, (name, held) in enumerate(FLEET.items())]
    record, version = engine.close([site.deliver(device, start, 1) for device in fleet], start, 1)
    assert set(record.accepted) == counted
    assert set(record.refused) == set(NAMES) - counted
    assert all("finite numbers" in why for why in record.refused.values())
    assert trainer.finished == ([1] if counted else [])
    assert (record.weighing is not None) == bool(counted)
    assert (version is start) == (not counted)


def test_without_a_guide_devices_weigh_the_same_and_the_head_stays() -> None:
    its, site = task(), Site(task(), 0)
    start = site.client.initial(its, 0)
    engine = Engine(its, site.server, {}, None)
    fleet = [VirtualDevice(name, Fixed(held), number) for number, (name, held) in enumerate(FLEET.items())]
    record, version = engine.close([site.deliver(device, start, 1) for device in fleet], start, 1)
    assert record.weighing is None
    assert not record.trained
    assert as_bytes({"head": version["head"]}) == as_bytes({"head": start["head"]})
    assert as_bytes(version) != as_bytes(start)


def test_a_device_alone_learns_with_the_same_coordinator() -> None:
    found = each_alone(task(), {"d1": FLEET["d1"]}, windows(60, 50), 3, rounds=1, labelled=KNOWN)["d1"]
    assert found.evaluation is not None
    assert found.rounds[0].weighing is not None
    assert found.rounds[0].weighing.weights["encoder/a"] == {"d1": 1.0}


def test_labelled_windows_that_lack_or_do_not_fit_are_named() -> None:
    with pytest.raises(Misconfigured, match=r"'tactfl' needs labelled windows.*none are given"):
        simulate(task(), FLEET, None, 0)
    with pytest.raises(Misconfigured, match="'qqr' learns nothing at the coordinator"):
        simulate(any_task(), FLEET, None, 0, labelled=KNOWN)
    with pytest.raises(Misconfigured, match="none of the coordinator's 60 windows has a label"):
        simulate(task(), FLEET, None, 0, labelled=unlabelled(4))
    odd = replace(KNOWN, x={**KNOWN.x, "b": KNOWN.x["a"]})
    with pytest.raises(Misconfigured, match=r"coordinator's labelled windows: x/b has shape"):
        simulate(task(), FLEET, None, 0, labelled=odd)


TASK = task_toml(
    ("low", "middle", "high"),
    "guided",
    method="tactfl",
    streams={"a": stream(2, 16.0), "b": stream(3, 16.0)},
    window={"length_s": 1.0},
    network={"feature_dim": 8, "hidden_dim": 16, "encoders": {key: {"width": 4, "depth": 1} for key in "ab"}},
    config={"batch": 16, "head_epochs": 2},
    rounds={"count": 1},
)


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_the_command_reads_the_coordinators_windows_beside_the_task(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "data").mkdir()
    for name, held in FLEET.items():
        window_set.save(tmp_path / "data" / f"{name}.npz", held)
    window_set.save(tmp_path / "few.npz", KNOWN)
    file = tmp_path / "task.toml"
    file.write_text(TASK)
    words = ["--task", str(file), "--data", str(tmp_path / "data"), "--format", "json"]
    lacks = invoke(*words)
    assert isinstance(lacks.exception, Misconfigured)
    assert "[labelled] file" in str(lacks.exception)
    told = invoke(*words, "--labelled", str(tmp_path / "few.npz"))
    assert told.exit_code == 0, told.output
    file.write_text(TASK + '[labelled]\nfile = "few.npz"\n')
    named = invoke(*words)
    assert named.exit_code == 0, named.output
    report = json.loads(named.stdout)
    assert json.loads(told.stdout)["rounds"] == report["rounds"]
    weighing = report["rounds"][0]["weighing"]
    assert set(weighing["weights"]) == set(ENCODERS)
    assert set(weighing["similarity"]["encoder/a"]["d0"]["others"]) == {"d1", "d2"}
    show(report)
    printed = capsys.readouterr().out
    assert "weights in round 1" in printed
    assert all(name in printed for name in (*NAMES, *ENCODERS))
    other = invoke(*words, "--method", "qqr", "--labelled", str(tmp_path / "few.npz"))
    assert "--labelled: method 'qqr' learns nothing at the coordinator" in str(other.exception)


def test_the_table_to_judge_on_is_read_as_the_tasks_labelled_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    window_set.save(tmp_path / "data" / "d0.npz", FLEET["d0"])
    channels = {f"{name}.{axis}": [0.0] * 64 for name, count in (("a", 2), ("b", 3)) for axis in range(count)}
    table = {"who": ["p", "q"] * 32, "t": [at // 2 / 16 for at in range(64)], **channels}
    file = write_csv(tmp_path / "test.csv", {**table, "did": ["low", "high"] * 32})
    named = Labelled(file="elsewhere.npz", label_column="did", recording_column="who")
    its = task().model_copy(update={"labelled": named})
    fleet = of_files(its, tmp_path / "data", file, None)
    assert fleet.test is not None
    assert sorted(set(fleet.test.y_B.tolist())) == [0, 2]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(part: str, _seed: int) -> DataSplit:
        count = 300 if part == "train" else 90
        return DataSplit(windows(count, 1 if part == "train" else 50), np.zeros(count, np.int64))

    def its(*, rounds: int = 1, seed: int = 0, config: Any = None, codec: str = "int8") -> Task:
        del codec
        small = any_task(config=config or {}, seed=seed)
        return small.model_copy(update={"rounds": small.rounds.model_copy(update={"count": rounds})})

    setting = OnlineSetting(devices=3, pool=60, size=40, step=10)
    small = replace(dataset_tasks.UCI_HAR, load=split, setting=setting)
    monkeypatch.setattr(dataset_tasks, "STUDIES", {"uci-har": small})
    monkeypatch.setattr(dataset_tasks.DatasetStudy, "task", lambda _, **given: its(**given))


@pytest.mark.usefixtures("made")
def test_the_command_deals_a_data_set_out_to_the_coordinator_and_unlabelled_devices() -> None:
    words = ["--dataset", "uci-har", "--method", "tactfl", "--option", "head_epochs=2", "--format", "json"]
    done = invoke(*words, "--labelled-share", "0.2")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["method"], report["labelled_share"], report["labelled"]) == ("tactfl", 0.2, 60)
    assert report["rounds"][0]["trained"]["labelled_windows"] == 60
    assert json.loads(invoke(*words).stdout)["labelled"] == 30
    for share, culprit in (("0", "the coordinator needs some"), ("1", "and so do the devices")):
        assert culprit in str(invoke(*words, "--labelled-share", share).exception)
    plain = invoke("--dataset", "uci-har", "--labelled-share", "0.2")
    assert "--labelled-share: method 'qqr' learns nothing at the coordinator" in str(plain.exception)


@pytest.mark.usefixtures("made")
def test_the_data_sets_windows_are_parted_and_the_devices_know_no_class() -> None:
    fleet = of_dataset("uci-har", None, {}, rounds=1, seed=4, options={}, named="tactfl")
    assert fleet.labelled is not None
    assert (fleet.labelled.y_B >= 0).all()
    mine = {row.tobytes() for row in fleet.labelled.x["a"]}
    for fixed in fleet.devices.values():
        held = fixed.at(1)  # type: ignore[union-attr]
        assert (held.y_B == -1).all()
        assert not mine & {row.tobytes() for row in held.x["a"]}


def test_labelled_windows_for_a_data_set_are_a_share_of_it() -> None:
    done = invoke("--dataset", "uci-har", "--labelled", "few.npz")
    assert done.exit_code == 2
    assert "--labelled-share" in done.output
