"""The study's fleets: who holds what, no device has a label, nobody is judged on what was seen."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.tactfl.data import dealing, dsads, fleets, hapt, uci_har
from lichen_lab.benchmarks.studies.tactfl.data.dealing import FAULTS, broken
from lichen_lab.benchmarks.studies.tactfl.data.hapt import WORN
from lichen_lab.benchmarks.studies.tactfl.settings import HERE, DealConditions, UnlabelledFleet, alone
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import uci_har as har_data
from models.contract import WindowSet
from protocol.errors import Misconfigured
from tests.support.lab import tactfl_study

FEW = DealConditions(devices=3, alpha=100.0, labelled=0.25)
WORN_BY = DealConditions(devices=21, labelled=0.25)
BY_PERSON = DealConditions(devices=6, labelled=1.0)
GYRO_MAG = "dsads, gyroscope and magnetometer"
CASES = [("uci-har", FEW), ("hapt", WORN_BY), (GYRO_MAG, BY_PERSON)]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Small made files in the packed forms of both data sets, and nothing else."""
    root = tmp_path / "packed"
    monkeypatch.setenv(locations.DATA_VARIABLE, str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "beside_checkout", lambda: tmp_path / "nothing")
    tactfl_study.write_har(root)
    tactfl_study.write_hapt(root)
    tactfl_study.write_dsads(root)
    yield root
    for kept in (dsads._person, uci_har._split, uci_har._before, hapt._sessions, hapt._everybody):
        kept.cache_clear()


def marks(windows: WindowSet) -> set[bytes]:
    """One window, one mark."""
    return {x_CT.tobytes() for x_CT in windows.x["gyroscope"]}


def held(fleet: UnlabelledFleet) -> list[set[bytes]]:
    return [marks(member.windows) for member in fleet.members]


@pytest.mark.parametrize(("name", "conditions"), CASES)
def test_tactfl_fleet_windows_lie_with_one_holder_and_devices_have_no_label(
    name: str, conditions: DealConditions
) -> None:
    made = fleets.fleet(name, 1, conditions)
    parts = [marks(made.labelled), marks(made.tests[HERE]), *held(made)]
    assert len(set().union(*parts)) == sum(map(len, parts)), "a window lies in two places"
    assert all((member.windows.y_B == -1).all() for member in made.members)
    assert (made.labelled.y_B >= 0).all()
    assert (made.tests[HERE].y_B >= 0).all()
    assert len(made.members) == conditions.devices


def test_tactfl_fleet_all_training_windows_are_dealt_out_and_the_same_seed_deals_the_same() -> None:
    made, again, other = (fleets.fleet("uci-har", seed, FEW) for seed in (1, 1, 2))
    assert len(made.labelled) == round(0.25 * 9 * 12)
    assert len(made.labelled) + sum(len(m.windows) for m in made.members) == 9 * 12
    assert len(made.tests[HERE]) == 2 * 12
    assert held(made) == held(again)
    assert marks(made.labelled) != marks(other.labelled)


def test_tactfl_fleet_a_condition_changes_nothing_but_itself() -> None:
    plain = fleets.fleet("uci-har", 0, FEW)
    more = fleets.fleet("uci-har", 0, DealConditions(devices=3, alpha=100.0, labelled=0.5))
    assert marks(plain.labelled) < marks(more.labelled)
    lacks = [dealing.lacking(20, 2, rate, 0) for rate in (0.0, 0.5, 0.8, 0.99)]
    assert not lacks[0].any()
    for fewer, further in pairwise(lacks):
        assert not (fewer & ~further).any(), "what is missing at one rate is there at a larger one"
    assert all((~lack).any(axis=0).all() for lack in lacks), "a modality is on no device"
    some = fleets.fleet("uci-har", 0, DealConditions(devices=3, alpha=100.0, labelled=0.25, missing=0.7))
    for member in some.members:
        present_M = member.windows.present_BM.any(axis=0)
        assert present_M.any()
        for there, x_BCT in zip(present_M, member.windows.x.values(), strict=True):
            assert there or not x_BCT.any()


def test_tactfl_fleet_is_tested_with_each_modality_alone() -> None:
    tests = fleets.fleet("uci-har", 0, FEW).tests
    assert list(tests) == [HERE, alone("accelerometer"), alone("gyroscope")]
    only, both = tests[alone("gyroscope")], tests[HERE]
    assert only.present_BM.tolist() == [[False, True]] * len(both)
    assert not only.x["accelerometer"].any()
    assert np.array_equal(only.x["gyroscope"], both.x["gyroscope"])
    assert np.array_equal(only.y_B, both.y_B)
    assert both.present_BM.all()


def test_tactfl_fleet_of_dsads_tests_and_labels_a_person_each_and_has_a_device_for_every_other() -> None:
    made, other = (fleets.fleet(GYRO_MAG, seed, BY_PERSON) for seed in (0, 1))
    parts = [made.tests[HERE], made.labelled, *(member.windows for member in made.members)]
    people = [int(part.x["gyroscope"][0, 0, 0] * 2 / 1000) for part in parts]
    assert sorted(people) == list(range(1, 9))
    assert [member.name for member in made.members] == [f"p{person}" for person in people[2:]]
    assert all(list(part.x) == ["gyroscope", "magnetometer"] for part in parts)
    assert list(made.tests) == [HERE, alone("gyroscope"), alone("magnetometer")]
    assert marks(made.tests[HERE]) != marks(other.tests[HERE])
    tuned = fleets.fleet(GYRO_MAG, 0, BY_PERSON, tuning=True)
    assert not marks(made.tests[HERE]) & set().union(
        marks(tuned.tests[HERE]), marks(tuned.labelled), *held(tuned)
    )
    assert len(tuned.members) == 5
    with pytest.raises(Misconfigured, match="neither contexts"):
        fleets.fleet(GYRO_MAG, 0, DealConditions(context_s=5.0, labelled=1.0))


def test_tactfl_fleet_a_small_alpha_makes_uneven_devices() -> None:
    y_B = np.repeat(np.arange(6), 100)

    def spread(alpha: float) -> float:
        shares = dealing.dirichlet_shares(y_B, 5, alpha, 0)
        assert sorted(np.concatenate(shares).tolist()) == list(range(len(y_B)))
        return float(np.std([np.bincount(y_B[own], minlength=6) for own in shares]))

    assert spread(0.1) > 2 * spread(10.0)


def test_tactfl_fleet_context_is_the_stream_before_the_window() -> None:
    plain = fleets.fleet("uci-har", 0, FEW)
    longer = fleets.fleet("uci-har", 0, DealConditions(devices=3, alpha=100.0, labelled=0.25, context_s=4.5))
    assert held(plain) == held(longer)
    assert longer.labelled.context is None
    whole = uci_har._split("train").windows.x["gyroscope"]
    place_of = {x_CT.tobytes(): at for at, x_CT in enumerate(whole)}
    seen = set()
    for member in longer.members:
        context = member.windows.context
        assert context is not None
        assert context.x["gyroscope"].shape[2] == longer.task.context_samples("gyroscope") == 225
        for x_CT, long_CL, points in zip(
            member.windows.x["gyroscope"], context.x["gyroscope"], context.points_BM[:, 1], strict=True
        ):
            at = place_of[x_CT.tobytes()]
            before = min(at % 12, 2)
            assert points == min(225, 128 + 64 * before)
            assert np.array_equal(long_CL[:, -128:], x_CT)
            if before:
                assert np.array_equal(long_CL[:, -192:-128], whole[at - 1, :, :64])
            assert not long_CL[:, : 225 - points].any()
            seen.add(before)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("name", "conditions"), [("uci-har", FEW), ("hapt", WORN_BY)])
def test_tactfl_fleet_tuning_looks_at_training_people_alone(name: str, conditions: DealConditions) -> None:
    plain, tuned = (fleets.fleet(name, 3, conditions, tuning=tuning) for tuning in (False, True))
    assert not marks(plain.tests[HERE]) & (marks(tuned.tests[HERE]) | marks(tuned.labelled))
    judged = marks(tuned.tests[HERE])
    assert not judged & set().union(marks(tuned.labelled), *held(tuned))
    assert judged <= set().union(marks(plain.labelled), *held(plain))


@pytest.mark.parametrize("fault", FAULTS)
def test_tactfl_fleet_one_device_is_broken_and_says_nothing_of_it(fault: str) -> None:
    sound = fleets.fleet("uci-har", 0, FEW)
    made = fleets.fleet("uci-har", 0, DealConditions(devices=3, alpha=100.0, labelled=0.25, broken=fault))
    assert [member.kind for member in made.members] == [f"broken: {fault}", "", ""]
    assert held(made)[1:] == held(sound)[1:]
    first, before = made.members[0].windows, sound.members[0].windows
    for name, x_BCT in first.x.items():
        assert not np.array_equal(x_BCT, before.x[name])
        assert np.isfinite(x_BCT).all()
    assert (first.quality_BM == 1).all()
    assert np.array_equal(first.present_BM, before.present_BM)


def test_tactfl_fleet_faults_do_what_they_say() -> None:
    windows = fleets.fleet("uci-har", 0, FEW).members[0].windows
    for seed in range(5):
        turned = broken(windows, "flipped", np.random.default_rng(seed)).x["accelerometer"]
        sign_C = turned[0, :, 0] / windows.x["accelerometer"][0, :, 0]
        assert set(sign_C.tolist()) == {-1.0, 1.0}, (
            "some axes, never all: that would be a turn of the classes"
        )
        assert np.array_equal(turned, windows.x["accelerometer"] * sign_C[None, :, None])
    hiss = broken(windows, "noise", np.random.default_rng(0)).x["accelerometer"]
    assert hiss.std() == pytest.approx(windows.x["accelerometer"].std(), rel=0.1)
    assert abs(np.corrcoef(hiss.ravel(), windows.x["accelerometer"].ravel())[0, 1]) < 0.1
    assert not np.ptp(broken(windows, "stuck", np.random.default_rng(0)).x["accelerometer"], axis=2).any()


def _of(fleet: UnlabelledFleet, sensor: str) -> list[np.ndarray]:
    return [member.windows.x[sensor] for member in fleet.members]


def test_tactfl_fleet_worn_elsewhere_keeps_gravity_and_worn_askew_tilts_it() -> None:
    plain, elsewhere, askew = (
        fleets.fleet("hapt", 0, DealConditions(devices=21, labelled=0.25, shift=shift))
        for shift in ((), ("placement",), ("gravity",))
    )
    up = np.array([1.0, 0.0, 0.0])
    for as_it_was, turned, tilted in zip(
        *(_of(f, "accelerometer") for f in (plain, elsewhere, askew)), strict=True
    ):
        assert as_it_was.mean(axis=(0, 2)) == pytest.approx(up, abs=0.02)
        assert turned.mean(axis=(0, 2)) == pytest.approx(up, abs=0.05)
        assert np.linalg.norm(tilted.mean(axis=(0, 2))) == pytest.approx(1, abs=0.05)
    cosines = [float(tilted.mean(axis=(0, 2)) @ up) for tilted in _of(askew, "accelerometer")]
    assert min(cosines) < 0.8, "nobody is tilted"
    assert min(cosines) > 0.45, "tilted by more than 60 degrees"
    for as_it_was, tilted in zip(_of(plain, "gyroscope"), _of(askew, "gyroscope"), strict=True):
        lengths = [np.linalg.norm(x, axis=1) for x in (as_it_was, tilted)]
        assert lengths[0] == pytest.approx(lengths[1], abs=1e-4)
    assert set(plain.tests) == {HERE}
    assert set(askew.tests) == {HERE, WORN}
    assert marks(askew.tests[HERE]) == marks(plain.tests[HERE])
    assert marks(askew.labelled) == marks(plain.labelled), "the coordinator's windows are as recorded"
    assert not marks(askew.tests[WORN]) & marks(askew.tests[HERE])


def test_tactfl_fleet_a_slower_sensor_is_interpolated_between_its_samples() -> None:
    plain, slow = (
        fleets.fleet("hapt", 0, DealConditions(devices=21, labelled=0.25, shift=shift))
        for shift in ((), ("rate",))
    )
    steps = set()
    for whole, fewer in zip(plain.members, slow.members, strict=True):
        x_BCT, told_BCT = (m.windows.x["gyroscope"].astype(np.float64) for m in (whole, fewer))
        if np.array_equal(x_BCT, told_BCT):
            steps.add(1)
        else:
            bends_BCT = np.abs(np.diff(told_BCT[0], n=2))
            steps.add(2 if (bends_BCT[:, 1::2] < 1e-4).all() or (bends_BCT[:, ::2] < 1e-4).all() else 3)
    assert steps == {1, 2, 3}


def test_tactfl_fleet_small_ones_are_small_and_errors_name_what_is_wrong(data: Path) -> None:
    small = fleets.fleet("uci-har", 0, DealConditions(labelled=0.5), small=True)
    assert len(small.members) == fleets.SMALL_DEVICES
    with pytest.raises(Misconfigured, match="no fleet 'bus'; there are uci-har, hapt"):
        fleets.fleet("bus", 0, FEW)
    with pytest.raises(Misconfigured, match="no shift 'mood'"):
        fleets.fleet("hapt", 0, DealConditions(shift=("mood",)))
    with pytest.raises(Misconfigured, match="devices cannot differ by gravity"):
        fleets.fleet("uci-har", 0, DealConditions(shift=("gravity",)))
    with pytest.raises(Misconfigured, match=r"labelled share of 0\.0001"):
        fleets.fleet("uci-har", 0, DealConditions(labelled=0.0001))
    file = data / har_data.FOLDER / har_data.file_name("train")
    with np.load(file) as arrays:
        kept = {key: arrays[key] for key in arrays if key != "continues_previous"}
    np.savez(file, **kept)
    uci_har._before.cache_clear()
    with pytest.raises(Misconfigured, match="continues_previous"):
        fleets.fleet("uci-har", 0, DealConditions(context_s=5.12))
