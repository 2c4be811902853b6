"""The study's fleets: who has what, and that nobody is judged on, or by, what it has trained on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.disentafl.data import (
    fleets,
    judges,
    made,
    merge_ac,
    merge_fa,
    merge_mm,
    merge_vm,
    uci_har,
    vehicle,
)
from lichen_lab.benchmarks.studies.disentafl.data.windows import stratified
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import av_mnist, spar, spar_windows
from lichen_lab.simulation.data.sets import vehicle as vehicle_data
from models.contract import Profile, WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL
from tests.support.lab import made_data


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small made files in the packed forms of all four data sets, and nothing else."""
    root = tmp_path / "packed"
    root.mkdir()
    monkeypatch.setenv(locations.DATA_VARIABLE, str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "beside_checkout", lambda: tmp_path / "nothing")
    monkeypatch.setattr(judges, "HIDDEN", 16)
    write_images(root / av_mnist.FOLDER)
    write_images(root / av_mnist.FASHION)
    sounds = made_data.fsdd_arrays()
    sounds["index"] = (6 * sounds["index"]).astype(np.int8)  # 0, 6 ... 42: of all three parts
    hiss = np.random.default_rng(12).integers(-2000, 2000, len(sounds["audio"]))
    sounds["audio"] = (sounds["audio"] + hiss).astype(np.int16)  # no two recordings are the same
    made_data.write_fsdd(root, sounds)
    people = made_data.har_parts(rows=168)
    for number, arrays in enumerate(people.values()):  # 24 windows each, 4 of every class
        arrays["subject"] = (1 + 10 * number + np.arange(len(arrays["y"])) // 24).astype(np.int8)
    made_data.write_har(root, people)
    write_vehicle(root)
    monkeypatch.setattr(spar_windows, "series", watches)
    return root


def watches() -> tuple[spar.Series, ...]:
    """Recordings of two people's arms, of which no two windows are the same."""
    rng = np.random.default_rng(13)
    return tuple(
        spar.Series(person, side, label, rng.standard_normal((400, 6)).astype(np.float32))
        for person in (1, 2)
        for side in (0, 1)
        for label in range(len(spar.LABELS))
    )


def write_images(folder: Path) -> None:
    """Images of which no two are the same: noise, and a brightness that tells the class."""
    rng = np.random.default_rng(11)
    folder.mkdir()
    for prefix, count in (("train", 40), ("t10k", 120)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        noise = rng.integers(1, 40, (count, 28, 28))
        pixels = (20 * labels[:, None, None] + noise).astype(np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(made_data.idx(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(made_data.idx(labels))


def write_vehicle(root: Path, **other: object) -> None:
    """Samples that tell their place; nodes of unlike size."""
    node = np.repeat(np.arange(23), np.arange(23) * 3 + 5).astype(np.int8)
    count = len(node)
    x = np.arange(count, dtype=np.float32)[:, None] + np.linspace(0, 0.5, 100, dtype=np.float32)
    arrays = {"x": x, "y": np.where(np.arange(count) % 2, 1, -1).astype(np.int8), "node": node} | other
    (root / vehicle_data.FOLDER).mkdir(exist_ok=True)
    np.savez(root / vehicle_data.FOLDER / vehicle_data.FILE, **arrays)  # type: ignore[arg-type]


SMALL: dict[str, Callable[[int], TargetFleet]] = {
    "vehicle-xm": vehicle.build,
    "uci-har-xm": lambda seed: uci_har.build(seed, each=1, train=10, test=10),
    "merge-fa": lambda seed: merge_fa.build(seed, each=1, train=20, test=10),
    "made": lambda seed: made.build(seed, devices=9),
    "vehicle-xm-random": lambda seed: vehicle.build(seed, by_node=False),
    "merge-ac": lambda seed: merge_ac.build(seed, each=2, train=20, test=10),
    "merge-vm": lambda seed: merge_vm.build(seed, devices=4, train=10, test=10),
    "merge-mm": lambda seed: merge_mm.build(seed, each=1, train=10, test=10),
}
EVERY = pytest.mark.parametrize("name", SMALL)


def parts(member: TargetDevice) -> tuple[WindowSet, WindowSet]:
    return member.train, member.test


def alike(one: WindowSet, other: WindowSet) -> bool:
    return (
        all(np.array_equal(one.x[name], other.x[name]) for name in one.x)
        and np.array_equal(one.y_B, other.y_B)
        and one.targets.keys() == other.targets.keys()
        and all(np.array_equal(one.targets[t], other.targets[t]) for t in one.targets)
    )


@EVERY
def test_windows_fit_the_task_and_names_are_unique(name: str) -> None:
    fleet = SMALL[name](0)
    assert len({member.name for member in fleet.members}) == len(fleet.members)
    for member in fleet.members:
        for windows in parts(member):
            assert len(windows) > 0
            window_set.check(windows, fleet.task, member.name)


@EVERY
def test_the_same_seed_makes_the_same_fleet_and_another_seed_another(name: str) -> None:
    first, again, other = SMALL[name](3), SMALL[name](3), SMALL[name](4)
    for one, two in zip(first.members, again.members, strict=True):
        assert one.profile == two.profile
        assert all(alike(a, b) for a, b in zip(parts(one), parts(two), strict=True))
    assert not all(alike(one.train, two.train) for one, two in zip(first.members, other.members, strict=True))


@EVERY
def test_a_device_holds_nothing_that_it_neither_reads_nor_generates_nor_predicts(name: str) -> None:
    fleet = SMALL[name](1)
    for member in fleet.members:
        targets = [fleet.task.target(o) for o in member.profile.targets]
        mine = {*member.profile.modalities, *(t.modality for t in targets if t.modality)}
        for windows in parts(member):
            for column, modality in enumerate(fleet.task.modality_names):
                here = windows.present_BM[:, column]
                assert here.all() if modality in mine else not here.any()
                assert modality in mine or not windows.x[modality].any()
            for target in fleet.task.objectives:
                labelled = ~np.isnan(window_set.target(windows, target.name))
                wanted = target.name in member.profile.targets and target.kind != "generation"
                assert labelled.all() if wanted else not labelled.any()
        assert set(member.truth) == {t.name for t in targets if t.kind == "generation"}
        assert all(y_B.shape == (len(member.test),) for y_B in member.truth.values())
        assert all(y_B.shape == (len(member.train),) for y_B in member.train_truth.values())


@EVERY
def test_no_window_is_both_trained_and_judged_on(name: str) -> None:
    for member in SMALL[name](2).members:
        sets = [
            {b"".join(windows.x[m][row].tobytes() for m in windows.x) for row in range(len(windows))}
            for windows in parts(member)
        ]
        assert not sets[0] & sets[1], member.name


@EVERY
def test_tuning_never_shows_a_test_window(name: str) -> None:
    fleet = SMALL[name](0)
    tuned = fleets.held_out(fleet, seed=1)
    for before, after in zip(fleet.members, tuned.members, strict=True):
        assert len(after.train) + len(after.test) == len(before.train)
        told = {b"".join(x[row].tobytes() for x in before.test.x.values()) for row in range(len(before.test))}
        for windows in parts(after):
            assert not told & {
                b"".join(x[row].tobytes() for x in windows.x.values()) for row in range(len(windows))
            }
        for target, y_B in after.truth.items():
            assert len(y_B) == len(after.test)
            assert sorted([*y_B, *after.train_truth[target]]) == sorted(before.train_truth[target])


def test_vehicle_deals_every_sample_once_and_keeps_nodes_together() -> None:
    fleet = vehicle.build(0)
    assert {kind: len(members) for kind, members in fleet.kinds.items()} == {
        "acoustic > label": 7,
        "seismic > label": 7,
        "acoustic, seismic > label": 6,
    }
    held = [
        np.concatenate([w.x[member.profile.modalities[0]][:, 0, 0] for w in parts(member)])
        for member in fleet.members
    ]
    sizes = [len(one) for one in held]
    assert max(sizes) - min(sizes) <= 1
    # the seismic features of a sample begin a quarter above the acoustic ones
    assert sorted(np.floor(np.concatenate(held)).astype(int)) == list(range(sum(sizes)))
    node_B = np.repeat(np.arange(23), np.arange(23) * 3 + 5)
    nodes = [len({int(node_B[int(v)]) for v in np.floor(one)}) for one in held]
    assert np.mean(nodes) < 4, "dealt at random, a device would have samples of nearly all nodes"


def test_vehicle_dealt_at_random_gives_every_device_samples_of_most_nodes() -> None:
    fleet = vehicle.build(0, by_node=False)
    assert fleet.name in fleets.BUILDERS
    node_B = np.repeat(np.arange(23), np.arange(23) * 3 + 5)
    held = [
        np.concatenate([w.x[member.profile.modalities[0]][:, 0, 0] for w in parts(member)])
        for member in fleet.members
    ]
    assert sorted(np.floor(np.concatenate(held)).astype(int)) == list(range(len(node_B)))
    assert np.mean([len({int(node_B[int(v)]) for v in np.floor(one)}) for one in held]) > 10


def test_merge_vm_has_two_halves_without_a_sensor_or_target_in_common() -> None:
    for rho, single in ((0.0, 0), (0.5, 2), (1.0, 4)):
        members = merge_vm.build(0, devices=4, train=10, test=10, rho=rho).members
        halves = [members[:4], members[4:]]
        seen = [{s for m in half for s in (*m.profile.modalities, *m.profile.targets)} for half in halves]
        assert not seen[0] & seen[1]
        for half in halves:
            assert sum(len(m.profile.modalities) == 1 for m in half) == single
            if single:
                assert len({m.profile.modalities for m in half if len(m.profile.modalities) == 1}) == 2
        assert {len(m.train) for m in members} == {10}
    with pytest.raises(Misconfigured, match=r"rho .* not 1\.5"):
        merge_vm.build(0, rho=1.5)
    with pytest.raises(Misconfigured, match="people"):
        merge_vm.build(0, devices=30, train=10, test=10)
    with pytest.raises(Misconfigured, match="of vehicles a device"):
        merge_vm.build(0, devices=4, train=1000, test=10)


def test_merge_mm_has_the_thirteen_kinds_and_two_sources_that_share_a_sensor() -> None:
    fleet = merge_mm.build(0, each=1, train=10, test=10)
    assert len(fleet.kinds) == len(merge_mm.KINDS) == 13
    watch = next(m for m in fleet.members if m.profile == Profile(("total_acc",), ("exercise",)))
    phone = next(m for m in fleet.members if m.profile == Profile(("total_acc",), (LABEL,)))
    assert not np.isnan(watch.train.targets["exercise"]).any()
    assert (watch.train.y_B == -1).all()
    assert (phone.train.y_B >= 0).all()
    # 3 rho of each of eleven kinds, 10 (1 - rho) of each of two
    assert [len(merge_mm.profiles(rho)) for rho in (0.0, 1 / 3, 2 / 3, 1.0)] == [20, 25, 28, 33]
    with pytest.raises(Misconfigured, match=r"rho .* not -1"):
        merge_mm.build(0, rho=-1)
    with pytest.raises(Misconfigured, match="20 phones asked for, and data of 14"):
        merge_mm.build(0, each=2, train=10, test=10)


def test_merge_ac_has_two_domains_of_five_classes_a_device_and_one_kind_of_profile() -> None:
    fleet = merge_ac.build(0, each=2, train=20, test=10)
    assert len({member.profile for member in fleet.members}) == 1
    assert [len(members) for members in fleet.kinds.values()] == [2, 2]
    for place, members in enumerate(fleet.kinds.values()):
        for member in members:
            seen, asked = ({*w.y_B.tolist()} for w in parts(member))
            assert seen == asked
            assert len(seen) == merge_ac.CLASSES
            assert {y // 10 for y in seen} == {place}
    assert [len(members) for members in merge_ac.build(0, train=20, test=10).kinds.values()] == [8, 7]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"x": np.zeros((5, 100), np.float32)}, "key 'x'"),
        ({"y": np.zeros(874, np.int8)}, "key 'y' must be -1 or 1"),
        ({"node": np.full(874, -1, np.int8)}, "key 'node'"),
        ({"node": np.zeros(3, np.int8)}, "key 'node'"),
    ],
)
def test_vehicle_names_what_is_wrong_with_the_file(data: Path, wrong: dict[str, object], words: str) -> None:
    write_vehicle(data, **wrong)
    with pytest.raises(Misconfigured, match=rf"{vehicle_data.FILE}.*{words}"):
        vehicle_data.load()


def test_vehicle_halves_its_features_into_two_sensors() -> None:
    split = vehicle_data.load()
    acoustic, seismic = (split.windows.x[m.name] for m in vehicle_data.MODALITIES)
    assert acoustic.shape == seismic.shape == (len(split), 1, 50)
    assert (seismic[:, 0, 0] > acoustic[:, 0, -1]).all()
    assert set(split.windows.y_B.tolist()) == {0, 1}


def test_intensity_is_the_logarithm_of_the_mean_turning_speed() -> None:
    gyro_BCT = np.zeros((2, 3, 8), np.float32)
    gyro_BCT[0, 0], gyro_BCT[0, 1] = 3.0, 4.0  # 5 rad/s throughout
    assert uci_har.intensity(gyro_BCT).tolist() == pytest.approx([np.log10(5), -3.0], abs=1e-4)


def test_uci_har_gives_each_device_a_person_and_gaits_that_follow_from_activities() -> None:
    fleet = uci_har.build(0, each=1, train=30, test=30)
    member = next(m for m in fleet.members if {LABEL, "gait"} <= {*m.profile.targets})
    gait_of = {0: 1, 1: 2, 2: 3, 3: 0, 4: 0, 5: 0}
    gait_B = member.train.targets["gait"]
    assert gait_B.tolist() == [gait_of[y] for y in member.train.y_B.tolist()]
    with pytest.raises(Misconfigured, match="a person each"):
        uci_har.build(0, each=30)


def test_merge_fa_has_the_nine_kinds_and_five_classes_a_device() -> None:
    fleet = merge_fa.build(0, each=2, train=20, test=10)
    assert {member.profile for member in fleet.members} == set(merge_fa.PROFILES)
    assert all(len(members) == 2 for members in fleet.kinds.values())
    for member in fleet.members:
        for target in {LABEL, "objects"} & {*member.profile.targets}:
            seen, asked = ({*window_set.target(w, target).tolist()} for w in parts(member))
            assert seen == asked
            assert len(seen) == merge_fa.CLASSES
    some = merge_fa.build(0, each=1, train=20, test=10, classes=10).members[0]
    assert set(some.train.y_B.tolist()) == set(range(10))


def test_merge_fa_shows_two_items_only_where_clothing_is_to_be_told() -> None:
    for member in merge_fa.build(0, each=1, train=20, test=10).members:
        if "image" not in member.profile.modalities:
            continue
        image_BWH = member.train.x["image"]
        corners = image_BWH[:, 14:, :14], image_BWH[:, :14, 14:]
        assert all(not corner.any() for corner in corners) == ("objects" in member.profile.targets)


def test_the_image_to_generate_is_the_digit_that_the_window_is_of() -> None:
    fleet = merge_fa.build(0, each=1, train=20, test=10)
    wanted = Profile(("image",), (LABEL, "objects", "gen_image"))
    member = next(m for m in fleet.members if m.profile == wanted)
    assert np.array_equal(member.truth["gen_image"], member.test.y_B)
    # what stands at the top left is what is to be generated, and made images tell their class by brightness
    assert np.array_equal(member.test.x["image"][:, :14, :14], member.test.x["digit"])
    told_B = np.rint(255 * member.test.x["digit"].mean(axis=(1, 2)) / 20 - 1).astype(int)
    assert np.array_equal(told_B, member.truth["gen_image"])


def test_halves_split_each_class_and_leave_one_window_between() -> None:
    y_B = np.array([0] * 10 + [1] * 7 + [0] * 2)
    head, tail = uci_har.halves(y_B)
    assert not {*head.tolist()} & {*tail.tolist()}
    for value in (0, 1):
        places_of = np.flatnonzero(y_B == value).tolist()
        first = [p for p in places_of if p in head]
        last = [p for p in places_of if p in tail]
        assert max(places_of.index(p) for p in first) + 2 == min(places_of.index(p) for p in last)


def test_a_stratified_share_keeps_every_class_on_both_sides() -> None:
    y_B = np.array([0] * 20 + [1] * 2 + [2])
    chosen_B = stratified(y_B, 0.9, np.random.default_rng(0))
    assert chosen_B[:20].sum() == 18
    assert chosen_B[20:22].sum() == 1


def test_a_made_fleet_has_as_many_inputs_targets_and_devices_as_asked() -> None:
    fleet = made.build(0, inputs=4, targets=4, devices=12)
    assert len(fleet.members) == 12
    assert len(fleet.task.input_names) == len(fleet.task.target_names) == 4
    assert {m for member in fleet.members for m in member.profile.modalities} == {*fleet.task.input_names}
    assert {o for member in fleet.members for o in member.profile.targets} == {*fleet.task.target_names}
    assert {len(member.profile.modalities) for member in fleet.members} == {1, 2}


def test_a_fleet_that_is_not_known_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"'vehicle'; there are vehicle-xm, uci-har-xm, merge-fa"):
        fleets.fleet("vehicle", 0)
    with pytest.raises(KeyError, match="no member 'x'"):
        made.build(0, devices=1).member("x")
