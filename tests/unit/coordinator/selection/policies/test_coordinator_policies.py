"""Selection policies: what each decides on, and that a restart forgets nothing of it."""

import math
import random

import numpy as np
import pytest
import sqlalchemy as sa

from coordinator.config.coordinator import load_settings
from coordinator.selection import history as past
from coordinator.selection.policies import PastRound, SelectionInput, policies, policy
from coordinator.selection.policies.bandit import arm, rank, sums
from coordinator.selection.policies.coverage import cells
from coordinator.status.history import read as history
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.task import load_task
from models.registry import method
from protocol.errors import Misconfigured
from protocol.messages import ModalityState
from protocol.tasks.rounds import Bandit, Rounds
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyServer, frame, header, tiny_task

pytestmark = pytest.mark.both_engines

every = pytest.mark.parametrize("name", ["bandit", "coverage", "uniform"])


def some(names) -> dict:
    """Candidates without data."""
    return {name: {} for name in names}


def test_every_policy_of_the_folder_is_found_by_its_name() -> None:
    assert list(policies()) == ["bandit", "coverage", "uniform"]
    with pytest.raises(Misconfigured, match=r"rounds\.selection.*'bandits' is none.*you mean 'bandit'"):
        policy("bandits")


def test_a_task_that_names_no_policy_is_refused_with_its_file(tmp_path) -> None:
    task = tmp_path / "task.toml"
    task.write_text(
        'name = "t"\nlabels = ["a", "b"]\n[rounds]\nselection = "lottery"\n'
        '[[modalities]]\nname = "acc"\nchannels = 1\nrate_hz = 10\n'
    )
    config = tmp_path / "coordinator.toml"
    config.write_text('fleet = "f"\nstate_dir = "s"\ntask = "task.toml"\n')
    with pytest.raises(Misconfigured, match=r"task\.toml.*rounds\.selection.*lottery"):
        load_task(load_settings(config))


@every
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_a_selection_holds_a_device_that_is_needed(name: str, wanted: int) -> None:
    rich = {f"p{i}": {"acc": (0, 5), "gyro": (5, 5)} for i in range(8)}
    candidates = rich | {"t1": {"acc": (1, 0)}, "t2": {"acc": (1, 0)}}
    choose = policy(name).choose
    seen = (
        PastRound(1, frozenset({"t1", "t2"}), {"t1": 0.1, "t2": 0.2}),
    )  # the others come first, for a bandit
    for seed in range(12):
        chosen = choose(SelectionInput(candidates, wanted, seed, needed={"t1", "t2"}, history=seen))
        assert len(chosen.devices) == wanted
        assert {"t1", "t2"} & set(chosen.devices)
        assert set(chosen.why) == set(chosen.devices)
    without = {name: counts for name, counts in candidates.items() if name in rich}
    chosen = choose(SelectionInput(without, wanted, 0, needed={"t1"}, history=seen))
    assert len(chosen.devices) == wanted, "nobody is needed who is not there"


@every
def test_the_same_draw_gives_the_same_choice_and_the_seed_decides_among_equals(name: str) -> None:
    choose = policy(name).choose
    candidates = {f"d{i}": {"acc": (1, 1)} for i in range(9)}
    assert choose(SelectionInput(candidates, 3, 9)) == choose(
        SelectionInput(dict(reversed(candidates.items())), 3, 9)
    )
    assert len({choose(SelectionInput(candidates, 3, seed)).devices for seed in range(10)}) > 1
    for wanted in (None, 9, 20):
        chosen = choose(SelectionInput(candidates, wanted, 0))
        assert set(chosen.devices) == set(candidates)
        assert set(chosen.why.values()) == {"every eligible device takes part"}
    assert choose(SelectionInput({}, 3, 0)).devices == ()


def test_coverage_covers_every_cell_before_it_draws_at_random() -> None:
    candidates = {f"rich{i}": {"acc": (5, 0), "gyro": (5, 0)} for i in range(20)}
    candidates |= {"rare": {"acc": (0, 1)}, "other": {"gyro": (0, 2)}}
    for seed in range(10):
        chosen = policy("coverage").choose(SelectionInput(candidates, 4, seed, ("walk", "run")))
        assert {"rare", "other"} <= set(chosen.devices)
        assert len(chosen.devices) == 4
        covered = frozenset().union(*(cells(candidates[d]) for d in chosen.devices))
        assert covered == {("acc", 0), ("acc", 1), ("gyro", 0), ("gyro", 1)}
        assert chosen.why["rare"] == "covers acc x run"


@pytest.mark.parametrize(
    ("seed", "devices"),
    [(0, ("d1", "d5", "d7")), (1, ("d5", "d6", "d7")), (2, ("d3", "d6", "d7")), (3, ("d1", "d5", "d6"))],
)
def test_coverage_draws_as_it_always_did(seed: int, devices: tuple[str, ...]) -> None:
    """What the release before policies drew: a task that names no policy runs on unchanged."""
    candidates = {f"d{i}": {"acc": (i % 3, (i + 1) % 3), "gyro": (0, i % 2)} for i in range(9)}
    assert (
        policy(Rounds().selection).choose(SelectionInput(candidates, 3, seed, ("a", "b"))).devices == devices
    )


HISTORY = (
    PastRound(1, frozenset({"a", "b"}), {"a": 2.0, "b": 1.0}, {"a": ("base/x",), "b": ("base/x", "base/y")}),
    PastRound(2, frozenset({"a", "c"}), {"a": 1.0}, {"a": ("base/x",)}),
    PastRound(4, frozenset({"b"}), {"b": 0.5}, {"b": ("base/y",)}),
)


def test_the_sums_are_those_of_the_paper() -> None:
    found = sums(HISTORY, 0.5)  # weights 1/8, 1/4, 1
    assert found.rounds == 1.375
    assert found.seen == {"a": 0.375, "b": 1.125, "c": 0.25}
    assert found.mean_loss("a") == pytest.approx((2.0 / 8 + 1.0 / 4) / 0.375)
    assert found.mean_loss("b") == pytest.approx((1.0 / 8 + 0.5) / 1.125)
    assert found.mean_loss("c") is None
    assert found.sampled == {"base/x": 0.125 + 0.25, "base/y": 1.125}, "once a round, by however many devices"
    one = arm("b", ("base/x", "base/y", "base/x"), found, 9.9, explore=2.0)
    assert one.score == pytest.approx(0.625 / 1.125 + 2 * math.sqrt(1.375 / (1.125 + 0.375 + 1.125)))
    assert one.words == "loss 0.56, seen 1.1 of 1.4 rounds, experts 1.5"


def ranked(history, candidates, **changes) -> list[str]:
    routes = changes.pop("routes", {})
    draw = SelectionInput(some(candidates), 1, 7, history=history, routes=routes, **changes)
    return [one.device for one in rank(draw)]


def test_the_bandit_prefers_the_new_then_large_losses_and_then_seldom_seen_experts() -> None:
    def exploring(weight: float) -> Rounds:
        return Rounds(bandit=Bandit(discount=0.5, explore=weight))

    assert ranked(HISTORY, "abz", rounds=exploring(1.0))[0] == "z", "never seen"
    assert ranked(HISTORY, "ab", rounds=exploring(0.0)) == ["a", "b"]
    twins = (
        PastRound(1, frozenset("ab"), {"a": 1.0, "b": 1.0}, {"a": ("e/1",), "b": ("e/2",)}),
        PastRound(2, frozenset("q"), {}, {"q": ("e/2",)}),
    )
    routes = {"a": ("e/1",), "b": ("e/2",)}
    for seed in range(6):
        draw = SelectionInput(some("ab"), 1, seed, history=twins, routes=routes, rounds=exploring(1.0))
        assert rank(draw)[0].device == "a", "its expert was moved once, the other's twice"
    draw = SelectionInput(some("abcdz"), 2, 7, history=HISTORY, rounds=exploring(1.0))
    chosen = policy("bandit").choose(draw)
    assert chosen.devices == ("d", "z")
    assert chosen.why["z"] == "never selected, experts 0.0"
    assert set(chosen.passed) == {"a", "b", "c"}
    assert chosen.passed["c"].startswith("loss unknown (0.94 assumed), seen 0.2 of 1.4 rounds")


def test_experts_are_those_of_the_method_and_count_once_a_round() -> None:
    """Else the sum grows with the devices of a round and with parts that all have, and explores nothing."""
    shared = ("base/acc", "decoder/label", "expert/_shared._shared", "expert/acc._shared", "last/label")
    own = {d: (*shared, "expert/acc.label", f"domain/acc.{d}") for d in (0, 1)}
    moved = {f"d{i}": own[i % 2] for i in range(8)}
    past_ = (PastRound(1, frozenset(moved), dict.fromkeys(moved, 1.0), moved),)
    experts = method("disentafl").experts
    assert sums(past_, 0.9, experts).sampled == {"acc.label.0": 1.0, "acc.label.1": 1.0}
    route = (*shared, "expert/acc.label", "domain/acc.0", "domain/acc.1", "domain/acc.2", "gate/acc")
    draw = SelectionInput(
        some("ef"), 1, 0, history=past_, routes={"e": route, "f": ("base/x",)}, experts=experts
    )
    assert {one.device: one.words for one in rank(draw)} == {
        "e": "never selected, experts 2.0",
        "f": "never selected, experts 0.0",
    }


def test_a_lie_about_a_loss_puts_nobody_who_delivers_nothing_before_those_who_deliver() -> None:
    honest, silent = [f"h{i}" for i in range(4)], [f"s{i}" for i in range(4)]
    for lie in (1e9, -1e9):
        losses = {"liar": lie, **{name: 0.5 + i / 100 for i, name in enumerate(honest)}}
        past_ = (PastRound(1, frozenset({*losses, *silent}), losses),)
        places = {name: i for i, name in enumerate(ranked(past_, ["liar", *honest, *silent]))}
        assert places["h3"] < min(places[name] for name in silent), "the largest honest loss"
        assert max(places[name] for name in silent) < places["h0"], "the smallest"


def test_a_device_that_was_asked_in_vain_leaves_its_place_to_others_in_the_next_attempt() -> None:
    """Else a device that is online and never delivers would be drawn again and again, for ever."""
    assert ranked(HISTORY, "abz", tried={"z"})[-1] == "z"
    chosen = policy("bandit").choose(SelectionInput({"z": {}, "y": {}}, 1, 0, history=HISTORY, tried={"z"}))
    assert chosen.devices == ("y",)
    assert chosen.passed["z"].endswith("(asked in vain in this round)")


def test_a_silent_device_is_not_drawn_in_every_round_and_not_left_out_for_ever() -> None:
    """It counts as seen when it was selected; without a loss it has the fleet's mean."""
    choose, drawn = policy("bandit").choose, []
    devices, past_rounds = [f"d{i}" for i in range(6)], []
    for round_ in range(1, 41):
        draw = SelectionInput(some(devices), 2, round_, history=tuple(past_rounds))
        chosen = choose(draw).devices
        drawn += chosen
        losses = {d: 1.0 for d in chosen if d != "d0"}
        past_rounds.append(PastRound(round_, frozenset(chosen), losses, dict.fromkeys(losses, ("w",))))
    counts = {device: drawn.count(device) for device in devices}
    assert min(counts.values()) >= 8, counts
    assert max(counts.values()) <= 20, counts


def test_the_horizon_covers_all_that_weighs() -> None:
    back = policy("bandit").looks_back
    assert back(Rounds()) == 66  # 0.9 ** 66 < 1e-3
    assert back(Rounds(bandit=Bandit(discount=1.0))) == 1000
    assert back(Rounds(bandit=Bandit(discount=0.9999))) == 1000
    assert policy("coverage").looks_back(Rounds()) == 0


def test_what_is_no_loss_is_passed_over(tmp_path) -> None:
    with Database(tmp_path / "c.sqlite3") as store:
        for device, metrics, blobs in (
            ("a", {"loss": 0.5}, ["w"]),
            ("b", {"loss": 1e300}, None),
            ("c", {}, ["w", "v"]),
            ("d", {"loss": "much"}, "w"),
        ):
            given = {"digest": device, "size": 1, "wall": 0.0, "header": {"metrics": metrics}}
            store.put(schema.updates, round=3, device=device, lost="", blobs=blobs, **given)
        gone = {"digest": "e", "size": 1, "wall": 0.0, "header": {"metrics": {"loss": 1.0}}, "blobs": ["w"]}
        store.put(schema.updates, round=3, device="e", lost="rotten", **gone)
        [found] = past.read(store, 4, 10)
        assert found == PastRound(
            3, frozenset("abcd"), {"a": 0.5}, {"a": ("w",), "b": (), "c": ("w", "v"), "d": ()}
        )
        assert past.read(store, 3, 10) == ()
        assert past.read(store, 9, 5) == ()
        assert past.read(store, 4, 0) == ()


class TwoParts(TinyServer):
    """Devices with a gyroscope hold another part."""

    def route(self, _task, profile) -> tuple[str, ...]:
        return tuple(f"part/{name}" for name in profile.modalities)

    def check(self, _task, _state, _update) -> None:
        """Anything goes."""

    def open(self, _task, _round, state):
        return Still(state)


class Still:
    def __init__(self, state) -> None:
        self._state = state

    def fold(self, _update) -> None:
        pass

    def close(self):
        return self._state


async def test_a_restart_between_two_rounds_changes_no_choice(tmp_path) -> None:
    """The same updates, with and without a restart before each round: the same devices, in the same words."""
    told = []
    for folder, restarts in ((tmp_path / "one", False), (tmp_path / "many", True)):
        task = tiny_task(count=6, devices_per_round=2, selection="bandit")
        rounds, done = list(range(1, 7)), 0
        while done < 6:
            async with bench(folder, task, server=TwoParts()) as made:
                last = done + 1 if restarts else 6  # the next one is opened by the next process
                made.app.fleet.may_select = lambda app=made.app, last=last: (
                    len(app.roster.online()) == 5 and app.driver.state.round <= last
                )
                for n in range(5):
                    sensor = {("acc", "gyro")[n % 2]: ModalityState(windows=(2, 1))}
                    await made.online(f"d{n}", modalities=sensor)
                for round_ in rounds[done : done + 1] if restarts else rounds[done:]:
                    await deliver(made, round_)
                    done = round_
        found = history(folder / "coordinator")
        told.append([(a["why"], a["policy"], a["passed"]) for r in found["rounds"] for a in r["attempts"]])
    assert told[0] == told[1]
    whys, policies_, passed = zip(*told[0], strict=True)
    assert set(policies_) == {"bandit"}
    assert len({device for why in whys[:3] for device in why}) == 5, "everybody once, first of all"
    assert all("loss" in words for words in whys[-1].values())
    assert len(passed[-1]) == 3


async def deliver(made, round_: int) -> None:
    driver = made.app.driver
    await made.until(lambda: driver.state.round == round_ and driver.state.phase == "collecting")
    for device in driver.state.selected:
        loss = random.Random(f"{device} {round_}").random()
        part = "part/acc" if int(device[1:]) % 2 == 0 else "part/gyro"
        head = header(device, round_, driver.state.manifest, metrics={"loss": loss})
        await made.give(device, Kind.UPDATE, frame(head, tensors={f"{part}/w": np.zeros(2, np.float32)}))
    await made.until(lambda: driver.state.version == round_ and driver.state.phase != "aggregating")


async def test_what_an_update_moved_is_in_its_row(tmp_path) -> None:
    task = tiny_task(count=1, devices_per_round=1)
    async with bench(tmp_path, task, server=TwoParts()) as made:
        await made.online("d0", "d2")
        await deliver(made, 1)
        rows = made.app.storage.store.rows(sa.select(schema.updates.c.blobs))
        assert rows == [{"blobs": ["part/acc"]}]
        attempts = made.app.storage.store.rows(sa.select(schema.attempts))
        assert (attempts[0]["policy"], attempts[0]["passed"]) == ("coverage", {})
