"""Simulations of a method whose devices hold parts of the model: profiles, routes, bytes, own models."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from export.bundle_builder import inference_module
from lichen_lab.simulation.cli import app
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.device import Site, VirtualDevice
from lichen_lab.simulation.training.engine import Engine
from lichen_lab.simulation.training.evaluation.scores import scored
from lichen_lab.simulation.training.inputs import profiles_of
from lichen_lab.simulation.training.personal import each_personal
from lichen_lab.simulation.training.runner import each_alone, not_judged, simulate
from lichen_lab.simulation.training.selection import Choice
from models.contract import Profile, Update, WindowSet, blob_of
from models.data import window_set
from models.methods.disentafl.routing import blob_names
from models.registry import method
from protocol.errors import Misconfigured
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, encode
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.task import Task
from tests.support.methods.disentafl_cases import task_of, windows_of

SMALL = {"width": 8, "heads": 1, "hidden": 8, "tokens": 4, "bottleneck": 2, "epsilon": 0.0}


def task(**config: object) -> Task:
    return task_of(**{**SMALL, **config})


def held(seed: int, absent: tuple[str, ...] = (), targets: tuple[str, ...] = ("label",)) -> WindowSet:
    """Windows without some modalities, labelled for some targets."""
    windows = windows_of(task(), seed, absent=absent)
    count = len(windows)
    made = {
        "pose": (np.arange(count) % 2).astype(np.float32),
        "speed": np.linspace(0, 1, count, dtype=np.float32),
    }
    y_B = windows.y_B if "label" in targets else np.full_like(windows.y_B, -1)
    return replace(windows, y_B=y_B, targets={o: v for o, v in made.items() if o in targets})


FLEET = {
    "a": held(1, ("cam", "gyro")),
    "b": held(2, ("cam", "acc"), ("pose", "speed")),
    "c": held(3, (), ("label", "pose")),
}
PROFILES = {
    "a": Profile(("acc",), ("label",)),
    "b": Profile(("gyro",), ("pose", "speed")),
    "c": Profile(("acc", "gyro"), ("label", "pose", "picture")),
}


def size(name: str, state) -> int:
    tensors = {key: encode(value, Codec.FLOAT32) for key, value in state[name].items()}
    return len(encode_frame(BlobHeader(name=name), tensors))


def test_each_device_moves_its_route_and_fetches_what_has_changed() -> None:
    seen: list[dict[str, Update]] = []
    its = task().model_copy(update={"uplink": Uplink(codec="int8")})
    history = simulate(
        whole(its),
        FLEET,
        None,
        3,
        rounds=2,
        watch=lambda _, updates: seen.append({u.header.device: u for u in updates}),
    )
    for updates, record in zip(seen, history.rounds, strict=True):
        assert not record.refused
        for name, update in updates.items():
            said = update.header.extra
            assert (tuple(said["modalities"]), tuple(said["targets"])) == (
                PROFILES[name].modalities,
                PROFILES[name].targets,
            )
            route = blob_names.route(task(), PROFILES[name], (said["domain"],))
            assert {blob_of(tensor) for tensor in update.tensors} == set(route)
            assert set(update.header.counts) == set(PROFILES[name].modalities)
    assert history.extra == {name: u.header.extra for name, u in seen[-1].items()}
    first, second = (
        {
            name: blob_names.route(task(), PROFILES[name], (u.header.extra["domain"],))
            for name, u in updates.items()
        }
        for updates in seen
    )
    (manifest,) = {
        history.rounds[0].bytes_down[name] - sum(size(blob, history.state) for blob in first[name])
        for name in ("a", "b")
    }
    assert 0 < manifest < 10_000
    # what nobody trained is not fetched again
    moved = {blob for route in first.values() for blob in route}
    rest = set()
    for name, route in second.items():
        again = {blob for blob in route if blob in moved or blob not in first[name]}
        rest.add(history.rounds[1].bytes_down[name] - sum(size(blob, history.state) for blob in again))
    assert len(rest) == 1, "of the manifest alone"
    assert history.bytes_down == sum(sum(r.bytes_down.values()) for r in history.rounds)


def selecting(policy: str, count: int = 1) -> Task:
    its = task()
    rounds = its.rounds.model_copy(update={"devices_per_round": count, "selection": policy})
    return its.model_copy(update={"rounds": rounds})


@pytest.mark.parametrize("policy", ["bandit", "coverage"])
def test_so_many_devices_take_part_as_the_task_says(policy: str) -> None:
    history = simulate(selecting(policy), FLEET, None, 3, rounds=4)
    chosen = [list(record.accepted) for record in history.rounds]
    assert all(len(names_) == 1 for names_ in chosen)
    assert [list(record.bytes_down) for record in history.rounds] == chosen
    if policy == "bandit":
        assert {name for names_ in chosen[:3] for name in names_} == set(FLEET), (
            "who was never seen comes first"
        )
    everybody = simulate(selecting(policy, 3), FLEET, None, 3, rounds=1)
    assert everybody.rounds == simulate(task(), FLEET, None, 3, rounds=1).rounds


def test_the_bandit_is_told_losses_and_what_was_moved() -> None:
    choice = Choice(selecting("bandit"), list(FLEET), list(FLEET), 3)
    engine = Engine(choice.task, method("disentafl").server(), {}, None, choice=choice)
    site, state = Site(choice.task, 3), method("disentafl").client().initial(choice.task, 3)
    fleet = {name: VirtualDevice(name, Fixed(windows)) for name, windows in FLEET.items()}
    for round_ in (1, 2):
        (name,) = engine.chosen(round_) or ()
        delivery = site.deliver(fleet[name], state, round_)
        _, state = engine.close([delivery], state, round_)
        past = choice.history.past()[-1]
        assert (past.round, past.selected) == (round_, {name})
        assert past.losses == {name: pytest.approx(delivery.metrics["loss"])}
        assert set(past.moved[name]) == set(delivery.route)


def test_a_policy_that_is_not_there_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"rounds\.selection"):
        simulate(selecting("bandid"), FLEET, None, 3, rounds=1)


@dataclass(frozen=True)
class Growing:
    """A gyroscope is plugged in after round 1, and labels of the pose begin to come."""

    def at(self, round_: int) -> WindowSet:
        return FLEET["a"] if round_ == 1 else held(1, ("cam",), ("label", "pose"))


def test_a_sensor_and_a_target_that_are_new_change_the_route_of_the_next_round() -> None:
    routes: list[set[str]] = []
    simulate(
        task(families=["mote", "mome"]),
        {"a": Growing()},
        None,
        1,
        rounds=2,
        watch=lambda _, updates: routes.append({blob_of(t) for t in updates[0].tensors}),
    )
    before, after = routes
    assert before == {"base/acc", "decoder/label", "last/label"} | {
        f"expert/{m}.{o}" for m in ("acc", "_shared") for o in ("label", "_shared")
    }
    assert before < after
    assert {"base/gyro", "decoder/pose", "expert/gyro.pose"} < after


def test_a_profile_is_a_limit_and_what_is_outside_of_it_is_not_learned_from() -> None:
    limits = {"c": Profile(("gyro",), ("pose",))}
    heard: list[Update] = []
    simulate(
        task(), {"c": FLEET["c"]}, None, 1, rounds=1, profiles=limits, watch=lambda _, us: heard.extend(us)
    )
    assert (heard[0].header.extra["modalities"], heard[0].header.extra["targets"]) == (["gyro"], ["pose"])
    assert list(heard[0].header.counts) == ["gyro"]
    nothing = {"c": Profile(("gyro",), ("speed",))}
    history = simulate(task(), {"c": FLEET["c"]}, None, 1, rounds=1, profiles=nothing)
    assert "no window has both an input" in history.rounds[0].refused["c"]
    with pytest.raises(Misconfigured, match="profiles: there is no device 'x'"):
        simulate(task(), FLEET, None, 1, profiles={"x": limits["c"]})
    only = each_alone(task(), {"c": FLEET["c"]}, None, 1, rounds=1, profiles=limits)["c"]
    assert only.rounds[0].accepted["c"] == history_of(limits).rounds[0].accepted["c"]


def whole(its: Task) -> Task:
    """Devices get versions as they are."""
    return its.model_copy(update={"downlink": Downlink(codec="float32")})


def history_of(limits: dict[str, Profile]):
    return simulate(
        whole(task().model_copy(update={"uplink": task().uplink.model_copy(update={"codec": "float32"})})),
        {"c": FLEET["c"]},
        None,
        1,
        rounds=1,
        profiles=limits,
    )


@pytest.mark.parametrize(
    "config",
    [{"last_layer": "interpolated"}, {"last_layer": "both"}, {"last_layer": "private"}, {"aggregate": "kd"}],
)
def test_own_models_are_judged_where_the_fleet_has_none(config: dict[str, str]) -> None:
    its, test = task(**config), held(9, (), ("label", "pose", "speed"))
    whole = config.get("last_layer") in {"interpolated", "both"}
    assert bool(not_judged(its, test)) is not whole
    history = simulate(its, FLEET, test if whole else None, 3, rounds=1, keep_private=True)
    found = each_personal(its, history, FLEET, test, 3)
    assert set(found) == set(FLEET)
    assert all((one.common is not None) is whole for one in found.values())
    assert found["b"].own.metrics.keys() == {"accuracy", "macro_f1", "loss", "windows", "speed/r2"}
    assert {"pose/accuracy", "picture/r2"} < found["c"].own.metrics.keys()
    # it is the device's own: another device's private tensors make another model
    mixed = replace(history, private={**history.private, "a": history.private["c"]})
    other = each_personal(its, mixed, {"a": FLEET["a"]}, test, 3)["a"].own.metrics
    assert other["loss"] != found["a"].own.metrics["loss"]


def test_scores_are_of_the_targets_that_test_windows_are_labelled_for() -> None:
    its = task()
    state = method("disentafl").client().initial(its, 1)
    names_ = method("disentafl").server().serving_route(its, PROFILES["b"], None)
    module = inference_module(its, {name: state[name] for name in names_})
    with pytest.raises(
        Misconfigured, match="no test window is labelled for a classification among pose, speed"
    ):
        scored(its, module, held(1, (), ("label", "speed")))
    assert scored(its, module, held(1, (), ("pose",))).metrics.keys() == {
        "accuracy",
        "macro_f1",
        "loss",
        "windows",
    }


@pytest.mark.parametrize(
    ("word", "profile"),
    [
        ("a=acc:label", Profile(("acc",), ("label",))),
        ("a=gyro,acc:", Profile(("acc", "gyro"), ("label", "pose", "speed", "picture"))),
        ("a=:speed", Profile(("acc", "gyro"), ("speed",))),
    ],
)
def test_a_profile_in_words(word: str, profile: Profile) -> None:
    assert profiles_of(task(), [word], ["a"]) == {"a": profile}


@pytest.mark.parametrize(
    ("word", "culprit"),
    [
        ("a", "write DEVICE=MODALITY"),
        ("x=acc", "no file is named x"),
        ("a=cam", "the task has no 'cam'"),
        ("a=acc:mood", "the task has no 'mood'"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(word: str, culprit: str) -> None:
    with pytest.raises(Misconfigured, match=culprit):
        profiles_of(task(), [word], ["a"])
    with pytest.raises(Misconfigured, match="all devices read and predict the same"):
        profiles_of(Task(name="t", labels=("a", "b"), modalities=task().modalities[:1]), [word], ["a"])


def test_the_command_simulates_a_routed_method_and_judges_own_models(tmp_path: Path) -> None:
    data = tmp_path / "devices"
    data.mkdir()
    for name, windows in FLEET.items():
        window_set.save(data / f"{name}.npz", windows)
    window_set.save(tmp_path / "test.npz", held(9, (), ("label", "pose")))
    (tmp_path / "task.toml").write_text(as_toml(task(last_layer="private")))
    words = ["--task", str(tmp_path / "task.toml"), "--data", str(data), "--test", str(tmp_path / "test.npz")]
    words += ["--rounds", "1", "--personal", "--profile", "c=gyro:pose", "--format", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "each device keeps its own" in report["not_judged"]
    assert report["bytes_down"] == sum(report["rounds"][0]["bytes_down"].values()) > 0
    assert report["personal"]["c"]["global"] is None
    assert 0 <= report["personal"]["c"]["personal"]["accuracy"] <= 1
    assert "decoder/picture" not in report["rounds"][0]["bytes_up"], "c may only predict the pose"
    assert CliRunner().invoke(app, words[:-2]).exit_code == 0


def as_toml(its: Task) -> str:
    """The task as a file."""
    lines = [f'name = "{its.name}"', f'method = "{its.method}"', f"labels = {json.dumps(its.labels)}"]
    for kind, parts in (("modalities", its.modalities), ("targets", its.targets)):
        for part in parts:
            lines.append(f"[[{kind}]]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in part.model_dump(exclude_defaults=True).items()]
    for name, table in (("window", its.window.model_dump(exclude_none=True)), ("config", its.config)):
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines)
